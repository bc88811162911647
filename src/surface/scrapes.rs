//! Owns: `GET /metrics`: who may read it, and one page at a time.
//! Never: what a figure means (`metrics`), or work on the threads that answer calls.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use tokio::sync::Mutex;

use super::errors::Kind;
use super::http::{self, Port};
use crate::access::Action;
use crate::metrics::Page;

/// Adds the figures of the node behind the port to a page. It may read files.
pub type MeasureNode = Arc<dyn Fn(&mut Page) + Send + Sync>;

/// The pages of one port. They are made one after the other, so a client that asks often must wait.
pub struct Scrapes {
    measure: MeasureNode,
    turn: Mutex<()>,
}

impl Scrapes {
    pub fn new(measure: MeasureNode) -> Arc<Scrapes> {
        Arc::new(Scrapes { measure, turn: Mutex::default() })
    }
}

pub async fn metrics(State(port): State<Port>, request: Request) -> Response {
    if let Some(refused) = http::forbidden(&request, Action::Metrics) {
        return refused;
    }
    match page(&port).await {
        Some(page) => ([(header::CONTENT_TYPE, Page::CONTENT_TYPE)], page.print()).into_response(),
        None => http::error(Kind::Storage, "the metrics could not be read"),
    }
}

/// All figures of the node now. `None` if they could not be read, which is a bug.
pub async fn page(port: &Port) -> Option<Page> {
    let port = port.clone();
    let scrapes = port.scrapes.clone();
    let _turn = scrapes.turn.lock().await;
    let made = tokio::task::spawn_blocking(move || {
        let mut page = Page::default();
        port.bus.gate().measure(&mut page);
        port.bus.measure(&mut page);
        port.gateway.measure(&mut page);
        port.limits.measure(&mut page);
        (port.scrapes.measure)(&mut page);
        page
    });
    made.await.inspect_err(|error| tracing::error!(%error, "the metrics could not be read")).ok()
}
