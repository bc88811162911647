//! The console: a web page that shows conversations and the cluster, live.
//!
//! Owns: serving its files, which are part of the program (`assets/`, packed by build.rs), with headers that let the page
//! run nothing but its own scripts.
//! Never: data. The page uses the public doors, like any other client.

use std::sync::LazyLock;

use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use xxhash_rust::xxh3::xxh3_64;

use super::http::{HttpError, NodeUrl, Port};

/// Where the console lives. `GET /` sends browsers here.
pub const PATH: &str = "/console";
const INDEX: &str = "index.html";

/// One file of the console.
struct File {
    name: &'static str,
    plain: &'static [u8],
    gzip: &'static [u8],
}

static FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/console.rs"));

/// A version for all files: they are only ever used together.
static ETAG: LazyLock<String> = LazyLock::new(|| {
    let all: Vec<u8> = FILES.iter().flat_map(|file| file.plain.iter().copied()).collect();
    format!("\"{:016x}\"", xxh3_64(&all))
});

/// Whether a path belongs to the console. Its files hold no data, so they need no credentials.
pub fn owns(path: &str) -> bool {
    path.strip_prefix(PATH).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a person looks at this port with a browser.
pub fn wants_page(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.into_iter().any(|value| value.contains("text/html"))
}

pub async fn index(State(port): State<Port>, request: Request) -> Response {
    answer(INDEX, &port, &request)
}

pub async fn file(State(port): State<Port>, Path(name): Path<String>, request: Request) -> Response {
    answer(&name, &port, &request)
}

fn answer(name: &str, port: &Port, request: &Request) -> Response {
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
        return HttpError::NoRoute { method, path }.into_response();
    };
    let asked = |name, wanted: &str| {
        let values = request.headers().get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.into_iter().any(|value| value.split(',').any(|part| part.trim().split(';').next() == Some(wanted)))
    };
    let mut response = match asked(header::IF_NONE_MATCH, &ETAG) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false if asked(header::ACCEPT_ENCODING, "gzip") => {
            ([(header::CONTENT_ENCODING, "gzip")], file.gzip).into_response()
        }
        false => file.plain.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type(name)));
    // Asked for again each time, and answered with 304: a page must not mix files of two versions.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    for (name, value) in [(header::ETAG, ETAG.clone()), (header::CONTENT_SECURITY_POLICY, policy(&(port.nodes)()))] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
    response
}

/// The page may run only its own scripts, and talk only to the nodes of this cluster. The DOM refuses text as markup.
fn policy(nodes: &[NodeUrl]) -> String {
    let nodes: Vec<String> = nodes.iter().filter_map(|node| web_url(&node.url)).collect();
    format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self' {}; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'",
        nodes.join(" ")
    )
}

/// The HTTP form of a node's URL, if it fits into the policy.
fn web_url(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let scheme = match scheme {
        "ws" => "http",
        "wss" => "https",
        _unknown => return None,
    };
    let host = rest.split('/').next()?;
    let is_plain = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:-[]".contains(&byte));
    (is_plain && !host.is_empty()).then(|| format!("{scheme}://{host}"))
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _unknown => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_together_are_small() {
        let bytes: usize = FILES.iter().map(|file| file.gzip.len()).sum();
        assert!(bytes < 200 << 10, "{bytes} bytes compressed");
        assert!(FILES.iter().any(|file| file.name == INDEX));
        assert!(FILES.iter().all(|file| content_type(file.name) != "application/octet-stream"));
    }

    /// The policy forbids both, so a file that has one would not work.
    #[test]
    fn no_page_has_a_script_or_a_style_inside() {
        for file in FILES.iter().filter(|file| file.name.ends_with(".html")) {
            let text = std::str::from_utf8(file.plain).unwrap();
            assert!(!text.contains("<style") && !text.contains(" style="), "{}", file.name);
            assert!(text.matches("<script").count() == text.matches("<script type=\"module\" src=").count());
        }
    }

    #[test]
    fn the_policy_names_the_nodes_and_nothing_that_a_node_could_smuggle_in() {
        let node = |url: &str| NodeUrl { node: 1, url: url.to_owned(), leads: false };
        let policy = policy(&[node("ws://127.0.0.1:1"), node("wss://a.example:2/x"), node("ws://x; script-src *")]);
        assert!(policy.contains("connect-src 'self' http://127.0.0.1:1 https://a.example:2;"), "{policy}");
        assert_eq!(policy.matches("script-src").count(), 1);
    }

    #[test]
    fn only_paths_below_the_console_are_open() {
        assert!(owns("/console") && owns("/console/app.js"));
        assert!(!owns("/consoles") && !owns("/v1/call/console"));
    }
}
