//! The property table of the linked librdkafka.

use std::{
    collections::BTreeSet,
    ffi::{c_char, c_int},
    ptr,
};

use rdkafka_sys as sys;

use crate::ffi::{array, text};

/// Every client and topic property that the linked librdkafka knows: public, hidden, deprecated, and aliases.
///
/// Sorted, each name once. Two sources are joined, as neither is whole: the dump of a configuration leaves out aliases,
/// the printed table leaves out hidden properties. A hidden property without a default value, such as
/// `ut_handle_ProduceResponse`, is in neither, so a caller has to refuse what it does not expect.
#[must_use]
pub fn known_properties() -> Vec<String> {
    let mut names = BTreeSet::new();
    names.extend(dumped_global());
    names.extend(dumped_topic());
    names.extend(property_names(&printed_table()));
    names.into_iter().collect()
}

/// The first column of the printed table's rows.
fn property_names(table: &str) -> impl Iterator<Item = String> + '_ {
    table
        .lines()
        .filter_map(|line| line.split_once(" | "))
        .map(|(name, _)| name.trim())
        .filter(|name| !name.is_empty() && *name != "Property")
        .map(ToOwned::to_owned)
}

fn dumped_global() -> Vec<String> {
    let mut count = 0;
    // SAFETY: a fresh configuration is dumped, the dump is copied, both are freed once.
    unsafe {
        let conf = sys::rd_kafka_conf_new();
        let dump = sys::rd_kafka_conf_dump(conf, &raw mut count);
        let names = names_of(dump, count);
        sys::rd_kafka_conf_dump_free(dump, count);
        sys::rd_kafka_conf_destroy(conf);
        names
    }
}

fn dumped_topic() -> Vec<String> {
    let mut count = 0;
    // SAFETY: as in `dumped_global`.
    unsafe {
        let conf = sys::rd_kafka_topic_conf_new();
        let dump = sys::rd_kafka_topic_conf_dump(conf, &raw mut count);
        let names = names_of(dump, count);
        sys::rd_kafka_conf_dump_free(dump, count);
        sys::rd_kafka_topic_conf_destroy(conf);
        names
    }
}

/// Every second string of a dump: it alternates names and values.
///
/// # Safety
/// `dump` points to `count` C strings.
unsafe fn names_of(dump: *const *const c_char, count: usize) -> Vec<String> {
    // SAFETY: as vouched for by the caller.
    let strings = unsafe { array(dump, count) };
    // SAFETY: each is a live C string.
    strings
        .iter()
        .step_by(2)
        .filter_map(|name| unsafe { text(*name) })
        .collect()
}

/// The table that librdkafka prints, caught in memory.
fn printed_table() -> String {
    let mut buffer: *mut c_char = ptr::null_mut();
    let mut size = 0;
    // SAFETY: both pointers outlive the stream, which is closed before the buffer is read.
    let stream = unsafe { libc::open_memstream(&raw mut buffer, &raw mut size) };
    if stream.is_null() {
        return String::new();
    }
    // SAFETY: an open stream.
    unsafe { sys::rd_kafka_conf_properties_show(stream) };
    // SAFETY: open, and not used after; closing writes what is buffered and sets `buffer` and `size`.
    let closed: c_int = unsafe { libc::fclose(stream) };
    // SAFETY: set by the stream: `size` bytes, or null.
    let table = String::from_utf8_lossy(unsafe { array(buffer.cast::<u8>().cast_const(), size) })
        .into_owned();
    // SAFETY: the stream allocated it with C's malloc, or it is null.
    unsafe { libc::free(buffer.cast()) };
    if closed == 0 { table } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_public_hidden_topic_and_alias_properties() {
        let known = known_properties();
        for name in [
            "bootstrap.servers",
            "sasl.mechanism",       // alias
            "client.software.name", // hidden
            "auto.offset.reset",    // topic
            "delivery.timeout.ms",  // topic alias
            "offset.store.path",    // deprecated
        ] {
            assert!(
                known.iter().any(|known| known == name),
                "{name} is missing in {known:?}"
            );
        }
        assert!(known.len() > 150, "{} properties only", known.len());
        assert!(
            known.iter().all(|name| !name.contains([' ', '|', '-'])),
            "{known:?}"
        );
    }
}
