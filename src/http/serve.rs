//! Connections: how many, how slow they may be, and how they end.
//!
//! `axum::serve` has no limits; a thousand callers that send one header byte a minute would hold a thousand tasks for
//! ever. So the accept loop is our own: a bound on connections, a deadline for the head of each request (it also ends idle
//! connections), and a drain that lets requests finish before the server goes.

use std::{io, pin::pin, sync::Arc, time::Duration};

use axum::{Router, body::Body, extract::Request};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

/// Bounds of the accept loop.
#[derive(Debug, Clone, Copy)]
pub struct ServeLimits {
    /// Connections at a time; more wait in the kernel's queue.
    pub max_connections: usize,
    /// How long the head of a request may take to arrive, and how long a connection may be idle.
    pub head_deadline: Duration,
    /// How long requests may go on after the shutdown was asked for.
    pub drain_deadline: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            max_connections: 1_024,
            head_deadline: Duration::from_secs(30),
            drain_deadline: Duration::from_secs(10),
        }
    }
}

/// Bytes of a request's head, and lines of it.
const MAX_HEAD_BYTES: usize = 32 * 1024;
const MAX_HEADERS: usize = 100;
/// After a failed accept (no file descriptors left, mostly): time for connections to end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` on `listener` until `shutdown` is cancelled, then lets the running requests finish.
///
/// Returns when every connection has ended or the drain's deadline has passed.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: CancellationToken,
    limits: ServeLimits,
) {
    let permits = Arc::new(Semaphore::new(limits.max_connections));
    let connections = TaskTracker::new();
    let cut = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &permits) => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, permit)) => {
                let connection = serve_connection(
                    stream,
                    router.clone(),
                    shutdown.clone(),
                    limits.head_deadline,
                );
                let cut = cut.clone();
                connections.spawn(async move {
                    let _permit = permit;
                    tokio::select! {
                        () = connection => {}
                        () = cut.cancelled() => {}
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(limits.drain_deadline, connections.wait())
        .await
        .is_err()
    {
        tracing::warn!(
            connections = connections.len(),
            "requests that did not finish in time are cut off"
        );
        cut.cancel();
        connections.wait().await;
    }
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits)
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // Answers are small and wanted at once.
    stream.set_nodelay(true)?;
    Ok((stream, permit))
}

async fn serve_connection(
    stream: TcpStream,
    router: Router,
    shutdown: CancellationToken,
    head_deadline: Duration,
) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let request: Request = request.map(Body::new);
        router.clone().oneshot(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_deadline)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // Callers hang up and send nonsense; neither is the server's fault.
        tracing::debug!(%error, "a connection ended early");
    }
}
