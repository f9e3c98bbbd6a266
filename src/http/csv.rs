//! Offsets as a table, in the form of Kafka's `kafka-consumer-groups --export` and `--from-file`: a line for each partition,
//! `topic,partition,offset`, without a header.

use std::collections::btree_map::Entry;

use crate::model::{
    field_error::FieldError, offset::Offset, offset::PartitionOffsets, startup_mode::OffsetsByTopic,
};

/// The media type.
pub(super) const CSV: &str = "text/csv";

/// What other programs write above the lines.
const HEADER: [&str; 3] = ["topic", "partition", "offset"];

/// Reads a table. A header and empty lines are passed over.
///
/// # Errors
/// Every line at fault, as `/<number of the line>`.
pub(super) fn read(text: &str) -> Result<OffsetsByTopic, Vec<FieldError>> {
    let mut offsets = OffsetsByTopic::default();
    let mut errors = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let fields: Vec<&str> = line.split(',').map(unquoted).collect();
        if line.trim().is_empty() || (index == 0 && fields == HEADER) {
            continue;
        }
        if let Err(why) = read_line(&fields, &mut offsets) {
            errors.push(FieldError::new(format!("/{}", index + 1), why));
        }
    }
    if offsets.0.is_empty() && errors.is_empty() {
        errors.push(FieldError::new("", "the table has no line"));
    }
    if errors.is_empty() {
        Ok(offsets)
    } else {
        Err(errors)
    }
}

/// The name of a topic holds neither commas nor quotes, so a field is what stands between two commas.
fn unquoted(field: &str) -> &str {
    let field = field.trim();
    let inner = field
        .strip_prefix('"')
        .and_then(|field| field.strip_suffix('"'));
    inner.unwrap_or(field)
}

fn read_line(fields: &[&str], offsets: &mut OffsetsByTopic) -> Result<(), String> {
    let &[topic, partition, offset] = fields else {
        let hint = if fields.len() == 4 {
            "; a table of several groups has the group in front: give the lines of one group without it"
        } else {
            ""
        };
        return Err(format!(
            "the line has {} fields and not three, topic,partition,offset{hint}",
            fields.len()
        ));
    };
    if topic.is_empty() {
        return Err("the topic is missing".to_owned());
    }
    let number = partition.parse().ok().filter(|number: &i32| *number >= 0);
    let number = number.ok_or_else(|| format!("'{partition}' is no partition number"))?;
    let next = offset.parse().ok().and_then(Offset::new);
    let next = next.ok_or_else(|| format!("'{offset}' is no offset"))?;
    match offsets.0.entry(topic.to_owned()).or_default().entry(number) {
        Entry::Occupied(_) => Err(format!("{topic}/{number} stands in the table before")),
        Entry::Vacant(free) => {
            free.insert(next);
            Ok(())
        }
    }
}

/// Writes a table.
pub(super) fn write(offsets: &PartitionOffsets) -> String {
    let lines = offsets.iter().map(|(partition, offset)| {
        format!("{},{},{offset}\n", partition.topic, partition.partition)
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::topic::TopicPartition;

    #[test]
    fn what_is_written_is_read() {
        let offset = |number| Offset::new(number).unwrap();
        let offsets = PartitionOffsets::from([
            (TopicPartition::new("orders", 0), offset(8_540)),
            (TopicPartition::new("orders", 11), offset(0)),
            (TopicPartition::new("pay.ments-2_x", 3), Offset::MAX),
        ]);
        let text = write(&offsets);
        assert_eq!(
            text,
            "orders,0,8540\norders,11,0\npay.ments-2_x,3,9007199254740991\n"
        );
        assert_eq!(read(&text).unwrap().by_partition(), offsets);
    }

    #[test]
    fn tables_of_other_programs_are_read() {
        let text = "topic,partition,offset\r\n\"orders\", 0 ,\"7\"\r\n\r\norders,1,8";
        let read = read(text).unwrap().by_partition();
        let numbers: Vec<i64> = read.values().map(|offset| offset.get()).collect();
        assert_eq!(numbers, [7, 8]);
    }

    #[test]
    fn every_line_at_fault_is_named() {
        let text = "orders,0,7\norders,0,8\norders,-1,8\norders,1,-1\ngroup,orders,2,8\n,3,1\norders;4;1\ntopic,partition,offset\n";
        let errors = read(text).unwrap_err();
        let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(pointers, ["/2", "/3", "/4", "/5", "/6", "/7", "/8"]);
        assert!(errors[3].message.contains("several groups"));
        assert!(read(" \n").is_err());
    }
}
