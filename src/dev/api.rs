//! The few calls that `handover dev` makes to its own REST API: one request a connection, over loopback.

use std::{io, net::SocketAddr, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// How long a call may take, waiting for an operation included.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// More than any answer here.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// Why a call did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// No answer.
    #[error("{call}: no answer from the server")]
    NoAnswer {
        /// Method and path.
        call: String,
        /// What went wrong.
        source: io::Error,
    },
    /// A refusal.
    #[error("{call}: {status}: {answer}")]
    Refused {
        /// Method and path.
        call: String,
        /// The HTTP status.
        status: u16,
        /// The problem document.
        answer: String,
    },
}

/// Sends a request and takes the JSON of a 2xx answer.
///
/// # Errors
/// See [`ApiError`].
pub async fn call(
    server: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, ApiError> {
    let name = || format!("{method} {path}");
    let exchange = timeout(ANSWER_WITHIN, exchange(server, method, path, body));
    let answer = match exchange.await {
        Ok(Ok(answer)) => answer,
        Ok(Err(source)) => {
            return Err(ApiError::NoAnswer {
                call: name(),
                source,
            });
        }
        Err(_) => {
            let source =
                io::Error::new(io::ErrorKind::TimedOut, format!("waited {ANSWER_WITHIN:?}"));
            return Err(ApiError::NoAnswer {
                call: name(),
                source,
            });
        }
    };
    let Some((status, text)) = split(&answer) else {
        let source = io::Error::new(io::ErrorKind::InvalidData, "the answer is no HTTP");
        return Err(ApiError::NoAnswer {
            call: name(),
            source,
        });
    };
    if !(200..300).contains(&status) {
        return Err(ApiError::Refused {
            call: name(),
            status,
            answer: text.to_owned(),
        });
    }
    Ok(serde_json::from_str(text).unwrap_or_default())
}

async fn exchange(
    server: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> io::Result<String> {
    let (kind, body) = match body {
        Some(body) => ("Content-Type: application/json\r\n", body.to_string()),
        None => ("", String::new()),
    };
    let mut stream = TcpStream::connect(server).await?;
    // HTTP/1.0 answers are never chunked, and end with the connection.
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {server}\r\nAccept: application/json\r\n{kind}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream
        .take(MAX_ANSWER_BYTES)
        .read_to_end(&mut answer)
        .await?;
    String::from_utf8(answer).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Status and body of an answer.
fn split(answer: &str) -> Option<(u16, &str)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_falls_into_status_and_body() {
        let answer =
            "HTTP/1.0 409 Conflict\r\ncontent-type: application/problem+json\r\n\r\n{\"code\":1}";
        assert_eq!(split(answer), Some((409, "{\"code\":1}")));
        assert_eq!(split("SSH-2.0-OpenSSH"), None);
    }
}
