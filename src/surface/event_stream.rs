//! Owns: a response of server-sent events that has no end: its headers, and how printed text reaches the connection.
//! Never: what is printed.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;

/// The largest piece that is handed to a connection at once.
pub const PIECE_BYTES: usize = 64 << 10;

/// Prints the events of one stream.
pub trait Printer: Send + 'static {
    /// Waits for events and prints them. `None` at the end of the stream.
    fn print_next(&mut self) -> impl Future<Output = Option<VecDeque<Bytes>>> + Send;
}

/// A response that begins with this text and goes on with what the printer prints.
pub fn event_stream(begin: String, printer: impl Printer) -> Response {
    let unsent = Unsent { printer, waiting: VecDeque::from([Bytes::from(begin)]) };
    let pieces = futures::stream::unfold(unsent, |mut unsent| async move { Some((unsent.piece().await?, unsent)) });
    let body = Body::from_stream(futures::StreamExt::map(pieces, Ok::<_, Infallible>));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A proxy that buffers would delay events.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct Unsent<P> {
    printer: P,
    /// What is printed and not handed to the connection yet.
    waiting: VecDeque<Bytes>,
}

impl<P: Printer> Unsent<P> {
    /// The next piece of the stream, of limited length. `None` at its end.
    async fn piece(&mut self) -> Option<Bytes> {
        loop {
            if let Some(first) = self.waiting.front_mut() {
                let piece = first.split_to(first.len().min(PIECE_BYTES));
                if first.is_empty() {
                    self.waiting.pop_front();
                }
                return Some(piece);
            }
            self.waiting = self.printer.print_next().await?;
        }
    }
}
