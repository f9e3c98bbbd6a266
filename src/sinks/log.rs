//! Prints records as lines. At least once: a checkpoint completes only after its lines were written and flushed, and a
//! restart prints again what came after the last one.
//!
//! Standard output may block for as long as its reader likes, so one thread of its own writes to it, fed by a short queue.
//! A full queue makes writers wait, which is the back-pressure; a writer that waits can be given up at any time, and what
//! it has in the queue is not printed any more. Pieces in the queue end with a line, so lines of several jobs never mix.

use std::{
    borrow::Cow,
    io::{self, Write},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use crate::{
    engine::{
        error::SinkError,
        ports::{Sink, SinkWriter},
    },
    model::{
        CheckpointId, JobName, LeaseEpoch, PartitionOffsets, TopicPartition,
        record::{BatchRun, ConsumerRecord, RecordBatch},
        resolver::{SinkPosition, SinkProgress},
        sink_spec::LogFormat,
    },
};

/// Pieces that wait for the writing thread.
const QUEUE: usize = 4;
/// A piece goes into the queue when it has grown to this: with the queue's length it bounds the memory behind a reader that
/// does not read.
const PIECE_BYTES: usize = 256 << 10;

enum Piece {
    Lines {
        bytes: Vec<u8>,
        /// Whether the writer they come from has been given up: then nothing of it may be printed any more.
        given_up: Arc<AtomicBool>,
    },
    Flush(oneshot::Sender<()>),
}

/// The one place where log lines go. Cheap to clone.
#[derive(Clone)]
pub struct LogOutput {
    pieces: mpsc::Sender<Piece>,
    broken: Arc<Mutex<Option<String>>>,
}

impl LogOutput {
    /// Lines go to `out`.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn new(mut out: impl Write + Send + 'static) -> io::Result<Self> {
        let (pieces, mut queue) = mpsc::channel(QUEUE);
        let broken: Arc<Mutex<Option<String>>> = Arc::default();
        let noted = Arc::clone(&broken);
        std::thread::Builder::new()
            .name("log-sink".to_owned())
            .spawn(move || {
                while let Some(piece) = queue.blocking_recv() {
                    if let Err(error) = carry_out(&mut out, piece) {
                        // The queue closes with this thread, and the writers say why.
                        *noted.lock().unwrap_or_else(PoisonError::into_inner) =
                            Some(error.to_string());
                        return;
                    }
                }
            })?;
        Ok(Self { pieces, broken })
    }

    async fn send(&self, piece: Piece) -> Result<(), SinkError> {
        self.pieces.send(piece).await.map_err(|_| self.failure())
    }

    async fn flush(&self) -> Result<(), SinkError> {
        let (done, is_done) = oneshot::channel();
        self.send(Piece::Flush(done)).await?;
        is_done.await.map_err(|_| self.failure())
    }

    fn failure(&self) -> SinkError {
        let cause = self
            .broken
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        SinkError::refused(format!(
            "the log output is broken: {}",
            cause.as_deref().unwrap_or("its thread ended")
        ))
    }
}

fn carry_out(out: &mut impl Write, piece: Piece) -> io::Result<()> {
    match piece {
        Piece::Lines { given_up, .. } if given_up.load(Ordering::Acquire) => Ok(()),
        Piece::Lines { bytes, .. } => out.write_all(&bytes),
        Piece::Flush(done) => {
            out.flush()?;
            // The job ended meanwhile if nobody listens.
            let _unheard = done.send(());
            Ok(())
        }
    }
}

pub(super) struct LogSink {
    job: JobName,
    format: LogFormat,
    max_value_bytes: usize,
    output: LogOutput,
}

impl LogSink {
    pub(super) fn new(
        job: JobName,
        format: LogFormat,
        max_value_bytes: u32,
        output: LogOutput,
    ) -> Self {
        Self {
            job,
            format,
            max_value_bytes: max_value_bytes as usize,
            output,
        }
    }
}

#[async_trait]
impl Sink for LogSink {
    async fn progress(&self) -> Result<SinkProgress, SinkError> {
        Ok(SinkProgress::new())
    }

    async fn recover(&self, _epoch: LeaseEpoch) -> Result<SinkProgress, SinkError> {
        Ok(SinkProgress::new())
    }

    async fn writer(&self, _subtask: u32) -> Result<Box<dyn SinkWriter>, SinkError> {
        Ok(Box::new(LogWriter {
            job: self.job.clone(),
            format: self.format,
            max_value_bytes: self.max_value_bytes,
            output: self.output.clone(),
            given_up: Arc::default(),
        }))
    }

    async fn forget(&self) -> Result<(), SinkError> {
        Ok(())
    }

    fn identity(&self) -> String {
        "log:stdout".to_owned()
    }

    fn has_fence(&self) -> bool {
        false
    }
}

struct LogWriter {
    job: JobName,
    format: LogFormat,
    max_value_bytes: usize,
    output: LogOutput,
    given_up: Arc<AtomicBool>,
}

/// A record as a JSON line. Bytes that are no UTF-8 stand in the `_base64` members instead.
#[derive(Serialize)]
struct Line<'a> {
    job: &'a str,
    topic: &'a str,
    partition: i32,
    offset: i64,
    timestamp_ms: Option<i64>,
    #[serde(flatten)]
    key: Shown<'a>,
    #[serde(flatten)]
    value: Shown<'a>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// Bytes under a name, as text where they are text.
struct Shown<'a> {
    text_name: &'static str,
    base64_name: &'static str,
    bytes: Option<&'a [u8]>,
}

impl Serialize for Shown<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(Some(1))?;
        match self.bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
            None => map.serialize_entry(self.text_name, &None::<&str>)?,
            Some((_, Ok(text))) => map.serialize_entry(self.text_name, text)?,
            Some((bytes, Err(_))) => {
                map.serialize_entry(self.base64_name, &BASE64.encode(bytes))?;
            }
        }
        map.end()
    }
}

impl LogWriter {
    async fn send(&self, bytes: Vec<u8>) -> Result<(), SinkError> {
        let given_up = Arc::clone(&self.given_up);
        self.output.send(Piece::Lines { bytes, given_up }).await
    }

    fn line(
        &self,
        run: &BatchRun,
        record: &ConsumerRecord<'_>,
        lines: &mut Vec<u8>,
    ) -> io::Result<()> {
        let key = record.key.map(|key| cut(key, self.max_value_bytes));
        let value = record.value.map(|value| cut(value, self.max_value_bytes));
        let truncated = key.map(<[u8]>::len) != record.key.map(<[u8]>::len)
            || value.map(<[u8]>::len) != record.value.map(<[u8]>::len);
        match self.format {
            LogFormat::Json => serde_json::to_writer(
                lines,
                &Line {
                    job: self.job.as_str(),
                    topic: &run.partition.topic,
                    partition: run.partition.partition,
                    offset: record.record_offset,
                    timestamp_ms: record.timestamp_ms,
                    key: Shown {
                        text_name: "key",
                        base64_name: "key_base64",
                        bytes: key,
                    },
                    value: Shown {
                        text_name: "value",
                        base64_name: "value_base64",
                        bytes: value,
                    },
                    truncated,
                },
            )
            .map_err(io::Error::from),
            LogFormat::Text => write!(
                lines,
                "{}@{} {} {}{}",
                run.partition,
                record.record_offset,
                readable(key),
                readable(value),
                if truncated { "..." } else { "" }
            ),
        }
    }
}

/// The first `most` bytes, fewer where that would cut a character of UTF-8 in two.
fn cut(bytes: &[u8], most: usize) -> &[u8] {
    if bytes.len() <= most {
        return bytes;
    }
    let is_inside_character = |byte: u8| byte & 0b1100_0000 == 0b1000_0000;
    let back = (0..4_usize.min(most + 1))
        .find(|back| !is_inside_character(bytes[most - back]))
        .unwrap_or(0);
    &bytes[..most - back]
}

/// Text with everything escaped that could end a line or steer a terminal.
fn readable(bytes: Option<&[u8]>) -> Cow<'static, str> {
    match bytes {
        None => Cow::Borrowed("null"),
        Some(bytes) => {
            let text = String::from_utf8_lossy(bytes);
            let escaped = text.chars().flat_map(|character| {
                let plain = (!character.is_control()).then_some(character);
                let escaped = character.is_control().then(|| character.escape_unicode());
                plain.into_iter().chain(escaped.into_iter().flatten())
            });
            Cow::Owned(escaped.collect())
        }
    }
}

#[async_trait]
impl SinkWriter for LogWriter {
    async fn assign(
        &mut self,
        _positions: &[(TopicPartition, SinkPosition)],
    ) -> Result<(), SinkError> {
        Ok(())
    }

    async fn write(&mut self, batch: &RecordBatch) -> Result<(), SinkError> {
        let mut lines = Vec::new();
        for run in batch.runs() {
            for record in batch.records_of(run) {
                self.line(run, &record, &mut lines).map_err(|error| {
                    SinkError::refused(format!("a record could not be formatted: {error}"))
                })?;
                lines.push(b'\n');
                if lines.len() >= PIECE_BYTES {
                    self.send(std::mem::take(&mut lines)).await?;
                }
            }
        }
        if lines.is_empty() {
            return Ok(());
        }
        self.send(lines).await
    }

    async fn prepare(
        &mut self,
        _checkpoint: CheckpointId,
        _positions: &PartitionOffsets,
    ) -> Result<(), SinkError> {
        self.output.flush().await
    }

    async fn abort(&mut self) {
        self.given_up.store(true, Ordering::Release);
    }

    async fn close(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{TopicPartition, record::RecordSource};

    struct One(Option<&'static [u8]>, Option<&'static [u8]>);

    impl RecordSource for One {
        fn record(&self, _index: usize) -> ConsumerRecord<'_> {
            ConsumerRecord {
                record_offset: 7,
                timestamp_ms: Some(5),
                key: self.0,
                value: self.1,
            }
        }
    }

    fn batch(key: Option<&'static [u8]>, value: Option<&'static [u8]>) -> RecordBatch {
        let partition = Arc::new(TopicPartition::new("orders", 3));
        RecordBatch::new(
            vec![BatchRun {
                partition,
                records: 0..1,
                advance_to: None,
            }],
            Box::new(One(key, value)),
        )
    }

    /// What a writer has printed, as far as it is flushed.
    #[derive(Clone, Default)]
    struct Printed(Arc<Mutex<Vec<u8>>>);

    impl Write for Printed {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    async fn writer(
        format: LogFormat,
        max_value_bytes: u32,
        out: impl Write + Send + 'static,
    ) -> Box<dyn SinkWriter> {
        let job = JobName::new("orders").unwrap();
        let sink = LogSink::new(job, format, max_value_bytes, LogOutput::new(out).unwrap());
        sink.writer(0).await.unwrap()
    }

    async fn line(
        format: LogFormat,
        max_value_bytes: u32,
        key: Option<&'static [u8]>,
        value: Option<&'static [u8]>,
    ) -> String {
        let printed = Printed::default();
        let mut writer = writer(format, max_value_bytes, printed.clone()).await;
        writer.write(&batch(key, value)).await.unwrap();
        writer
            .prepare(CheckpointId(1), &PartitionOffsets::new())
            .await
            .unwrap();
        let bytes = printed.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[tokio::test]
    async fn a_json_line_holds_text_as_text_and_other_bytes_as_base64() {
        assert_eq!(
            line(LogFormat::Json, 100, Some(b"k"), Some("größe\n".as_bytes())).await,
            "{\"job\":\"orders\",\"topic\":\"orders\",\"partition\":3,\"offset\":7,\"timestamp_ms\":5,\"key\":\"k\",\"value\":\"größe\\n\"}\n"
        );
        assert!(
            line(LogFormat::Json, 100, None, Some(&[0xff]))
                .await
                .contains("\"key\":null,\"value_base64\":\"/w==\"")
        );
    }

    #[tokio::test]
    async fn long_values_are_cut_between_characters_and_marked() {
        let cut_line = line(LogFormat::Json, 3, None, Some("größe".as_bytes())).await;
        assert!(
            cut_line.contains("\"value\":\"gr\",\"truncated\":true"),
            "{cut_line}"
        );
        assert_eq!(
            line(LogFormat::Text, 0, None, Some(b"abc")).await,
            "orders/3@7 null ...\n"
        );
    }

    #[tokio::test]
    async fn text_lines_cannot_steer_a_terminal() {
        let text = line(LogFormat::Text, 100, None, Some(b"a\x1b[2Jb\nc")).await;
        assert_eq!(text, "orders/3@7 null a\\u{1b}[2Jb\\u{a}c\n");
    }

    #[tokio::test]
    async fn a_broken_output_is_said_in_its_own_words() {
        struct Broken;
        impl Write for Broken {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::Error::other("the pipe is closed"))
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut writer = writer(LogFormat::Json, 100, Broken).await;
        writer.write(&batch(None, Some(b"x"))).await.unwrap();
        let error = writer
            .prepare(CheckpointId(1), &PartitionOffsets::new())
            .await
            .unwrap_err();
        assert!(error.detail.contains("the pipe is closed"), "{error}");
    }

    /// Standard output with a reader that does not read yet.
    struct Stuck(std::sync::mpsc::Receiver<()>, Printed);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // An error means that the test has let go for good.
            let _let_go = self.0.recv();
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_writer_that_was_given_up_prints_nothing_more() {
        let (reads, stuck) = std::sync::mpsc::sync_channel(0);
        let printed = Printed::default();
        let output = LogOutput::new(Stuck(stuck, printed.clone())).unwrap();
        let job = JobName::new("orders").unwrap();
        let sink = LogSink::new(job, LogFormat::Text, 100, output);
        let mut ended = sink.writer(0).await.unwrap();
        let mut goes_on = sink.writer(1).await.unwrap();
        // The first piece is with the thread, which is stuck; the others wait in the queue.
        for value in [b"1", b"2", b"3"] {
            ended.write(&batch(None, Some(value))).await.unwrap();
        }
        ended.abort().await;
        drop(reads);
        goes_on.write(&batch(None, Some(b"4"))).await.unwrap();
        goes_on
            .prepare(CheckpointId(1), &PartitionOffsets::new())
            .await
            .unwrap();
        let bytes = printed.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.ends_with("orders/3@7 null 4\n"), "{text}");
        assert!(!text.contains('2') && !text.contains(" 3\n"), "{text}");
    }
}
