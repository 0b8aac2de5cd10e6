//! Requests for the page: which are refused, and the answer of each path.

use axum::body::Body;
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use nicety_daemon::metrics;

use super::host;
use super::port;
use super::shown::Shown;
use super::view::View;

/// Nothing from elsewhere, no script but ours, no frame, no form that leads away.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
                      form-action 'self'; frame-ancestors 'none'";

/// A request.
struct Asked<'a> {
    method: &'a Method,
    path: &'a str,
    headers: &'a HeaderMap,
}

impl Asked<'_> {
    fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The reason why it is refused, if it is.
    fn refusal(&self) -> Option<(StatusCode, &'static str)> {
        if self.headers.get_all(HOST).iter().count() != 1 || !self.header(&HOST).is_some_and(is_here) {
            let why = "the page is asked for by this machine's name alone: 127.0.0.1, [::1] or localhost";
            return Some((StatusCode::MISDIRECTED_REQUEST, why));
        }
        let site = self.header(&HeaderName::from_static("sec-fetch-site"));
        let mode = self.header(&HeaderName::from_static("sec-fetch-mode"));
        // A link from elsewhere may lead here: nothing of the answer goes back there.
        let is_elsewhere = matches!(site, Some("cross-site" | "same-site")) && mode != Some("navigate");
        let is_foreign = self
            .header(&ORIGIN)
            .is_some_and(|origin| origin.split_once("://").is_none_or(|(_, host)| Some(host) != self.header(&HOST)));
        if is_elsewhere || is_foreign {
            return Some((StatusCode::FORBIDDEN, "another site may not read this page"));
        }
        (![Method::GET, Method::HEAD].contains(self.method))
            .then_some((StatusCode::METHOD_NOT_ALLOWED, "the page is only read"))
    }
}

/// Whether a Host header names this machine. The port may be another one: it may have been forwarded.
fn is_here(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !host.ends_with(']') => (name, port),
        _ => (host, ""),
    };
    let is_name = name.eq_ignore_ascii_case("localhost")
        || name == "[::1]"
        || name.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback());
    is_name && port.len() <= 5 && port.bytes().all(|digit| digit.is_ascii_digit())
}

pub(super) async fn answer<B>(shown: &Shown, request: &Request<B>) -> Response<Body> {
    let asked = Asked { method: request.method(), path: request.uri().path(), headers: request.headers() };
    const HTML: &str = "text/html; charset=utf-8";
    const TEXT: &str = "text/plain; charset=utf-8";
    if let Some((status, why)) = asked.refusal() {
        return response(status, TEXT, format!("{why}\n"));
    }
    match asked.path {
        "/page.css" => response(StatusCode::OK, "text/css; charset=utf-8", include_str!("page.css")),
        "/page.js" => response(StatusCode::OK, "text/javascript; charset=utf-8", include_str!("page.js")),
        _ if !shown.inspect.is_ready() => {
            response(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{}\n", crate::STARTING_SENTENCE))
        }
        "/" => match View::parse(request.uri().query()) {
            Ok(view) => response(StatusCode::OK, HTML, shown.host_page(&view, || host::page(shown, &view))),
            Err(why) => response(StatusCode::BAD_REQUEST, TEXT, format!("{why}\n")),
        },
        "/metrics" => match shown.metrics().await {
            Ok(text) => response(StatusCode::OK, metrics::CONTENT_TYPE, text),
            Err(why) => response(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
        },
        path => match of_port(shown, path, request.uri().query()) {
            Some(Ok(page)) => response(StatusCode::OK, HTML, page),
            Some(Err(why)) => response(StatusCode::BAD_REQUEST, TEXT, format!("{why}\n")),
            None => response(StatusCode::NOT_FOUND, TEXT, "there is no such page: / has all ports\n"),
        },
    }
}

/// The page of a port, or why the query is none. `None`: no port has this path.
fn of_port(shown: &Shown, path: &str, query: Option<&str>) -> Option<Result<String, String>> {
    let name = path.strip_prefix("/ports/")?;
    match View::parse(query) {
        Ok(view) => port::page(shown, name, &view).map(Ok),
        Err(why) => Some(Err(why)),
    }
}

fn response(status: StatusCode, kind: &'static str, text: impl Into<Body>) -> Response<Body> {
    let mut answer = Response::new(text.into());
    *answer.status_mut() = status;
    let headers = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    answer.headers_mut().extend(headers.map(|(name, value)| (name, HeaderValue::from_static(value))));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machines_names_are_taken_with_any_port() {
        for host in ["127.0.0.1", "127.0.0.1:8642", "127.1.2.3:1", "localhost", "LocalHost:9000", "[::1]", "[::1]:8642"]
        {
            assert!(is_here(host), "{host}");
        }
        for host in [
            "",
            "example.org",
            "example.org:8642",
            "127.0.0.1.example.org",
            "10.0.0.1:8642",
            "localhost:80a",
            "[::2]:1",
        ] {
            assert!(!is_here(host), "{host}");
        }
    }

    #[test]
    fn a_choice_in_the_address_is_taken_and_one_that_is_none_is_named() {
        let host = nicety_host::Host::parse("", std::path::Path::new("/etc/host.toml")).unwrap();
        let shown = Shown::new(&host, std::sync::Arc::new(crate::tests::Fake(2)), std::sync::Arc::default());
        for (target, status, says) in [
            ("/?q=vm1&sort=-sends&show=all&span=hour", 200, "1 of 2 ports"),
            ("/ports/vm1?span=hour", 200, "Last hour"),
            ("/?sort=size", 400, "sort in the address is one of"),
            ("/ports/vm1?span=day", 400, "span in the address is hour"),
            ("/ports/vm9?span=hour", 404, "there is no such page"),
        ] {
            let request = Request::get(target).header(HOST, "127.0.0.1:8642").body(()).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let answer = runtime.block_on(super::answer(&shown, &request));
            assert_eq!(answer.status().as_u16(), status, "{target}");
            let policy = answer.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
            assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
            let text = runtime.block_on(axum::body::to_bytes(answer.into_body(), 1 << 20)).unwrap();
            assert!(String::from_utf8_lossy(&text).contains(says), "{target}: {text:?}");
        }
    }

    #[test]
    fn a_request_of_another_site_is_refused_and_so_is_all_but_reading() {
        let refused = |method: &Method, headers: &[(&'static str, &'static str)]| {
            let known =
                headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            let headers: HeaderMap = known.collect();
            Asked { method, path: "/", headers: &headers }.refusal().map(|(status, _)| status.as_u16())
        };
        const HERE: (&str, &str) = ("host", "127.0.0.1:8642");
        let get = Method::GET;
        assert_eq!(refused(&get, &[HERE]), None);
        assert_eq!(refused(&get, &[HERE, ("sec-fetch-site", "none")]), None);
        assert_eq!(refused(&get, &[HERE, ("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "cors")]), None);
        assert_eq!(refused(&get, &[HERE, ("origin", "http://127.0.0.1:8642")]), None);
        assert_eq!(refused(&get, &[HERE, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]), None);
        assert_eq!(refused(&get, &[]), Some(421));
        assert_eq!(refused(&get, &[("host", "rebound.example:8642")]), Some(421));
        for mode in ["no-cors", "cors"] {
            for site in ["cross-site", "same-site"] {
                assert_eq!(refused(&get, &[HERE, ("sec-fetch-site", site), ("sec-fetch-mode", mode)]), Some(403));
            }
        }
        for origin in ["http://example.org", "null", "http://127.0.0.1:1"] {
            assert_eq!(refused(&get, &[HERE, ("origin", origin)]), Some(403), "{origin}");
        }
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            assert_eq!(refused(&method, &[HERE]), Some(405));
        }
        assert_eq!(refused(&Method::HEAD, &[HERE]), None);
    }
}
