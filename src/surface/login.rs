//! Owns: where a request carries its credentials: the header `Authorization`, a query parameter or a cookie.
//! Never: whether they are right (`access`), or a credential in a log.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, Uri, header};

use crate::access::{Credentials, Identity, LoginError, Presented};

/// The query parameter of browsers, which cannot set headers on a WebSocket or an EventSource.
pub const QUERY: &str = "token";
/// The cookie of browsers. Requests of foreign pages are refused by their origin before it is read.
const COOKIE: &str = "session_manager_token";

/// Checks the credentials of a request.
pub fn check(
    credentials: &Credentials,
    headers: &HeaderMap,
    uri: &Uri,
    certificate: Option<&Arc<Identity>>,
    from: IpAddr,
) -> Result<Arc<Identity>, LoginError> {
    let token = bearer(headers)?.or_else(|| in_query(uri)).or_else(|| in_cookie(headers));
    credentials.check(Presented { token, certificate, from })
}

/// The token of the header. A header of another kind is wrong, and not the same as none.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, LoginError> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let text = value.to_str().map_err(|_| LoginError::Wrong)?;
    let (kind, token) = text.split_once(' ').ok_or(LoginError::Wrong)?;
    if !kind.eq_ignore_ascii_case("bearer") {
        return Err(LoginError::Wrong);
    }
    Ok(Some(token.trim()))
}

/// Tokens consist of characters that need no escape in a URL.
fn in_query(uri: &Uri) -> Option<&str> {
    let pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(name, _)| *name == QUERY).map(|(_, token)| token).next()
}

fn in_cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, token)| token)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_token_is_found_in_the_header_the_query_and_the_cookie() {
        let mut headers = HeaderMap::new();
        assert_eq!(bearer(&headers), Ok(None));
        for (value, found) in [
            ("Bearer abc", Ok(Some("abc"))),
            ("bearer  abc ", Ok(Some("abc"))),
            ("Basic abc", Err(LoginError::Wrong)),
            ("abc", Err(LoginError::Wrong)),
        ] {
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
            assert_eq!(bearer(&headers), found, "{value}");
        }
        assert_eq!(in_query(&Uri::from_static("/?a=1&token=abc&b")), Some("abc"));
        assert_eq!(in_query(&Uri::from_static("/?tokens=abc")), None);
        headers.insert(header::COOKIE, HeaderValue::from_static("a=b; session_manager_token=abc"));
        assert_eq!(in_cookie(&headers), Some("abc"));
    }
}
