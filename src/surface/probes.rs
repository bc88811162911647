//! Owns: what probes of an orchestrator ask: `GET /livez` and `GET /readyz`.
//! Never: an id, an address or another secret in an answer: probes need no credentials.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures::future::BoxFuture;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::http::{HttpError, Port};

/// A result is used again for this long: callers without credentials must not make much work.
const KEPT_FOR: Duration = Duration::from_millis(200);

/// One condition of readiness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    /// Why it fails. Tells no id and no address.
    pub trouble: Option<String>,
    /// Its failure makes a node not ready. Otherwise it is only shown, in the verbose form.
    pub required: bool,
}

impl Check {
    pub fn new(name: &'static str, trouble: Option<String>) -> Check {
        Check { name, trouble, required: true }
    }

    /// Something to see in the verbose form, which is no reason to send clients elsewhere.
    pub fn note(name: &'static str, trouble: Option<String>) -> Check {
        Check { name, trouble, required: false }
    }

    /// A check whose failure needs no details.
    pub fn require(name: &'static str, holds: bool, trouble: &str) -> Check {
        Check::new(name, (!holds).then(|| trouble.to_owned()))
    }
}

/// The checks of the data that this node serves. They may ask the leader, within a bound.
pub type CheckData = Arc<dyn Fn() -> BoxFuture<'static, Vec<Check>> + Send + Sync>;

/// The checks of the data, made once at a time.
pub struct Readiness {
    check: CheckData,
    last: Mutex<Option<(Instant, Vec<Check>)>>,
}

impl Readiness {
    pub fn new(check: CheckData) -> Arc<Readiness> {
        Arc::new(Readiness { check, last: Mutex::new(None) })
    }

    async fn checks(&self) -> Vec<Check> {
        let mut last = self.last.lock().await;
        if let Some((at, checks)) = &*last
            && at.elapsed() < KEPT_FOR
        {
            return checks.clone();
        }
        let checks = (self.check)().await;
        *last = Some((Instant::now(), checks.clone()));
        checks
    }
}

/// The query of a probe.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Form {
    verbose: Option<IgnoredAny>,
    /// Not needed, and no reason to refuse a probe.
    #[serde(rename = "token")]
    _token: Option<IgnoredAny>,
}

type AskedForm = Result<Query<Form>, QueryRejection>;

/// The process answers. Nothing else is asked: a restart helps against nothing else.
pub async fn livez(form: AskedForm) -> Response {
    match form {
        Ok(Query(form)) => print(&[], form.verbose.is_some()),
        Err(rejection) => HttpError::Query(rejection.body_text()).into_response(),
    }
}

/// Whether this node can serve calls now.
pub async fn readyz(State(port): State<Port>, form: AskedForm) -> Response {
    let form = match form {
        Ok(Query(form)) => form,
        Err(rejection) => return HttpError::Query(rejection.body_text()).into_response(),
    };
    let mut checks = port.ready.checks().await;
    checks.push(Check::new("calls", port.bus.gate().trouble()));
    checks.push(Check::require("running", !port.shutdown.is_cancelled(), "the node is shutting down"));
    print(&checks, form.verbose.is_some())
}

/// One line per failing check, or `ok`. The verbose form has a line for every check.
fn print(checks: &[Check], verbose: bool) -> Response {
    let fails = |check: &Check| check.required && check.trouble.is_some();
    let ready = !checks.iter().any(fails);
    let mut text = String::new();
    for Check { name, trouble, .. } in checks.iter().filter(|check| verbose || fails(check)) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name}: {}", trouble.as_deref().unwrap_or("ok"));
    }
    if ready {
        text.push_str("ok\n");
    }
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, text).into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_probes_at_once_make_one_check() {
        let made = Arc::new(AtomicUsize::new(0));
        let counted = made.clone();
        let readiness = Readiness::new(Arc::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            async { vec![Check::require("store", true, "")] }.boxed()
        }));
        futures::future::join_all((0..100).map(|_| readiness.checks())).await;
        assert_eq!(made.load(Ordering::SeqCst), 1);
        tokio::time::sleep(KEPT_FOR).await;
        assert_eq!(readiness.checks().await, [Check::new("store", None)]);
        assert_eq!(made.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_probe_lists_what_fails_and_its_verbose_form_everything() {
        let body = async |checks: &[Check], verbose| {
            let response = print(checks, verbose);
            let status = response.status().as_u16();
            let bytes = axum::body::to_bytes(response.into_body(), 1 << 10).await.unwrap();
            (status, String::from_utf8(bytes.to_vec()).unwrap())
        };
        let good = Check::new("store", None);
        let bad = Check::require("leader", false, "no leader is known");
        assert_eq!(body(std::slice::from_ref(&good), false).await, (200, "ok\n".to_owned()));
        assert_eq!(body(std::slice::from_ref(&good), true).await, (200, "store: ok\nok\n".to_owned()));
        let both = [good, bad];
        assert_eq!(body(&both, false).await, (503, "leader: no leader is known\n".to_owned()));
        assert_eq!(body(&both, true).await, (503, "store: ok\nleader: no leader is known\n".to_owned()));
    }
}
