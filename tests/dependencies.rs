//! What may be linked into the program: licences that go with Apache-2.0, sources that are the public registry, and no
//! crate in two versions without a reason written down.
//!
//! Reads `cargo metadata` without the network, for the platform that runs the test: what other platforms would add is
//! not downloaded here. The feature `loom` is left out as well; it is never part of the program.
#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use cargo_metadata::{Metadata, MetadataCommand};

/// Licences whose terms a program under Apache-2.0 can meet by naming them. `MPL-2.0` binds its own files alone, which
/// are used unchanged; `CDLA-Permissive-2.0` is for data (root certificates). Copyleft of whole programs is not here.
const COMPATIBLE_LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates that are there in several incompatible versions, with the reason. An entry without a duplicate fails as well,
/// so that the list shrinks when its reasons do.
const KNOWN_DUPLICATES: &[(&str, &str)] = &[
    (
        "base64",
        "sqlx is at 0.22 and the HTTP client of the tests at 0.23; the program follows sqlx",
    ),
    ("block-buffer", "comes with the two versions of digest"),
    ("cpufeatures", "comes with the two versions of sha2"),
    ("crypto-common", "comes with the two versions of digest"),
    ("digest", "comes with the two versions of sha2"),
    ("getrandom", "ring, under rustls, is at 0.2"),
    ("hashbrown", "sqlx-core is one version behind indexmap"),
    (
        "sha2",
        "sqlx-core and its macros are at 0.10, sqlx-postgres at 0.11",
    ),
    (
        "syn",
        "derive macros are moving from 2 to 3; at compile time only",
    ),
    ("tower-http", "the HTTP client of the tests is at 0.6"),
];

fn metadata() -> Metadata {
    let platform = format!("--filter-platform={}", host());
    MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .other_options(["--offline".to_owned(), "--locked".to_owned(), platform])
        .exec()
        .expect("cargo metadata of this workspace")
}

/// The platform of the compiler, as in `x86_64-unknown-linux-gnu`.
fn host() -> String {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler)
        .arg("-vV")
        .output()
        .expect("rustc runs");
    let said = String::from_utf8(output.stdout).expect("rustc speaks UTF-8");
    said.lines()
        .find_map(|line| line.strip_prefix("host: "))
        .expect("rustc -vV names the host")
        .to_owned()
}

#[test]
fn every_licence_is_compatible() {
    let metadata = metadata();
    let refused: Vec<String> = metadata
        .packages
        .iter()
        .filter_map(|package| {
            let licence = package.license.as_deref().unwrap_or("none stated");
            (!is_compatible(licence))
                .then(|| format!("{} {}: {licence}", package.name, package.version))
        })
        .collect();
    assert!(
        refused.is_empty(),
        "not known to be compatible with Apache-2.0:\n{}",
        refused.join("\n")
    );
}

#[test]
fn everything_comes_from_the_registry_or_this_workspace() {
    let metadata = metadata();
    let members: BTreeSet<_> = metadata.workspace_members.iter().collect();
    let foreign: Vec<String> = metadata
        .packages
        .iter()
        .filter(|package| match &package.source {
            Some(source) => !source.is_crates_io(),
            None => !members.contains(&package.id),
        })
        .map(|package| format!("{} {}: {:?}", package.name, package.version, package.source))
        .collect();
    assert!(
        foreign.is_empty(),
        "neither from crates.io nor of this workspace:\n{}",
        foreign.join("\n")
    );
}

#[test]
fn no_crate_is_there_twice_without_a_reason() {
    let metadata = metadata();
    let packages = metadata.packages.iter().map(|package| {
        (
            package.name.as_str(),
            package.version.major,
            package.version.minor,
        )
    });
    let found = duplicates(packages);
    let known: BTreeSet<String> = KNOWN_DUPLICATES
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let unexplained: Vec<&String> = found.difference(&known).collect();
    assert!(
        unexplained.is_empty(),
        "in several versions, without a reason in this file: {unexplained:?}"
    );
    let outdated: Vec<&String> = known.difference(&found).collect();
    assert!(
        outdated.is_empty(),
        "no longer in several versions, remove the entry: {outdated:?}"
    );
}

/// Names that are there in several versions that cargo cannot unify: other majors, or other minors below 1.0.
fn duplicates<'a>(packages: impl Iterator<Item = (&'a str, u64, u64)>) -> BTreeSet<String> {
    let mut versions: BTreeMap<&str, BTreeSet<(u64, u64)>> = BTreeMap::new();
    for (name, major, minor) in packages {
        let series = if major == 0 { (0, minor) } else { (major, 0) };
        versions.entry(name).or_default().insert(series);
    }
    versions
        .into_iter()
        .filter(|(_, series)| series.len() > 1)
        .map(|(name, _)| name.to_owned())
        .collect()
}

// ---------------------------------------------------------------------------------------------------------------------
// Licence expressions

/// Whether an SPDX expression leaves a choice of compatible licences. `/` is the old way to write OR. An expression that
/// cannot be read is not compatible.
fn is_compatible(expression: &str) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    match any_of(&tokens) {
        Some((is_compatible, [])) => is_compatible,
        _ => false,
    }
}

/// `a OR b OR ...`; AND binds closer. Returns the verdict and the tokens behind it; `None` cannot be read.
fn any_of<'a>(tokens: &'a [&'a str]) -> Option<(bool, &'a [&'a str])> {
    let (mut verdict, mut rest) = all_of(tokens)?;
    while let ["OR", behind @ ..] = rest {
        let (alternative, remaining) = all_of(behind)?;
        verdict |= alternative;
        rest = remaining;
    }
    Some((verdict, rest))
}

fn all_of<'a>(tokens: &'a [&'a str]) -> Option<(bool, &'a [&'a str])> {
    let (mut verdict, mut rest) = licence(tokens)?;
    while let ["AND", behind @ ..] = rest {
        let (addition, remaining) = licence(behind)?;
        verdict &= addition;
        rest = remaining;
    }
    Some((verdict, rest))
}

fn licence<'a>(tokens: &'a [&'a str]) -> Option<(bool, &'a [&'a str])> {
    match tokens {
        ["(", inner @ ..] => match any_of(inner)? {
            (verdict, [")", rest @ ..]) => Some((verdict, rest)),
            _ => None,
        },
        [name, "WITH", exception, rest @ ..] => {
            let whole = format!("{name} WITH {exception}");
            Some((COMPATIBLE_LICENCES.contains(&whole.as_str()), rest))
        }
        ["AND" | "OR" | "WITH" | ")", ..] | [] => None,
        [name, rest @ ..] => Some((COMPATIBLE_LICENCES.contains(name), rest)),
    }
}

#[test]
fn licence_expressions_are_read_as_written() {
    for compatible in [
        "MIT",
        "MIT OR Apache-2.0",
        "MIT/Apache-2.0",
        "Apache-2.0 / MIT",
        "GPL-3.0-only OR MIT",
        "(MIT OR GPL-2.0-only) AND Unicode-3.0",
        "Apache-2.0 WITH LLVM-exception",
        "GPL-3.0-only AND ISC OR MIT",
    ] {
        assert!(is_compatible(compatible), "{compatible}");
    }
    for refused in [
        "",
        "none stated",
        "GPL-3.0-only",
        "AGPL-3.0-or-later OR SSPL-1.0",
        "MIT AND GPL-3.0-only",
        "MIT AND (GPL-2.0-only OR LGPL-3.0-only)",
        "GPL-2.0-only WITH Classpath-exception-2.0",
        "MIT WITH Some-exception",
        "MIT OR",
        "(MIT",
        "MIT)",
        "MIT Apache-2.0",
    ] {
        assert!(!is_compatible(refused), "{refused}");
    }
}

#[test]
fn versions_that_cargo_unifies_are_no_duplicates() {
    let found = duplicates(
        [
            ("two-majors", 1, 0),
            ("two-majors", 2, 0),
            ("two-zeros", 0, 1),
            ("two-zeros", 0, 2),
            ("once", 1, 4),
            ("once", 1, 9),
        ]
        .into_iter(),
    );
    assert_eq!(
        found,
        BTreeSet::from(["two-majors".to_owned(), "two-zeros".to_owned()])
    );
}
