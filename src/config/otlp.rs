//! Owns: where an OTLP collector is, as the setting `otlp_endpoint` names it.

use super::ConfigError;

/// The port of collectors for OTLP over HTTP.
const PORT: u16 = 4318;
/// Where a collector takes spans, below the endpoint.
const PATH: &str = "/v1/traces";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collector {
    pub has_tls: bool,
    /// Without brackets.
    pub host: String,
    /// `host:port`.
    pub address: String,
    pub path: String,
}

impl Collector {
    /// Reads `http://host:4318`, with or without the port and a path, or `https://…`.
    pub fn parse(url: &str) -> Result<Collector, ConfigError> {
        let wrong = |problem: &str| {
            let fix = "write http://HOST:4318 or https://HOST, the address of an OpenTelemetry collector";
            ConfigError::key("otlp_endpoint", format!("{url:?} {problem}"), fix)
        };
        let has_tls = match url.split_once("://").map(|(scheme, _)| scheme) {
            Some("http") => false,
            Some("https") => true,
            Some(_) | None => return Err(wrong("is no URL with http or https")),
        };
        let rest = &url[url.find("://").map_or(0, |at| at + 3)..];
        if rest.contains(['@', '?', '#']) || rest.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(wrong("has more than a host, a port and a path"));
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let has_port =
            authority.rsplit_once(':').is_some_and(|(host, _)| !host.is_empty() && !authority.ends_with(']'));
        let (host, port) = match authority.rsplit_once(':').filter(|_| has_port) {
            Some((host, port)) => (host, port.parse().map_err(|_| wrong("has a port that is no number below 65536"))?),
            None => (authority, if has_tls { 443 } else { PORT }),
        };
        let host_of_certificate = host.trim_start_matches('[').trim_end_matches(']');
        if host_of_certificate.is_empty() || (host_of_certificate.contains(':') && !host.starts_with('[')) {
            return Err(wrong("has no host"));
        }
        Ok(Collector {
            has_tls,
            host: host_of_certificate.to_owned(),
            address: format!("{host}:{port}"),
            path: format!("{}{PATH}", path.trim_end_matches('/')),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_host_with_or_without_port_and_path() {
        let read = |url: &str| Collector::parse(url).map(|found| (found.has_tls, found.address, found.path)).unwrap();
        let traces = || "/v1/traces".to_owned();
        assert_eq!(read("http://127.0.0.1:9"), (false, "127.0.0.1:9".to_owned(), traces()));
        assert_eq!(read("http://collector"), (false, "collector:4318".to_owned(), traces()));
        assert_eq!(read("https://[::1]/"), (true, "[::1]:443".to_owned(), traces()));
        assert_eq!(read("https://c.example/otlp/"), (true, "c.example:443".to_owned(), "/otlp/v1/traces".to_owned()));
        for wrong in
            ["", "collector:4318", "grpc://c", "http://", "http://:1", "http://u:p@c", "http://c:99999", "http://a b"]
        {
            let why = Collector::parse(wrong).unwrap_err().to_string();
            assert!(why.starts_with("otlp_endpoint: "), "{why}");
        }
    }
}
