//! Makes cargo notice when the web pages were built: they are embedded from `web/dist`, which may not exist.

use std::{fs, path::Path};

fn main() {
    let dist = Path::new("web/dist");
    // Cargo takes a path that is missing for one that always changes. A read-only source tree builds, too.
    drop(fs::create_dir_all(dist));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=web/dist");
}
