//! Requests to a tracking server (MLflow's REST API 2.0).

use crate::error::{Error, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::time::Duration;
use ureq::http::{HeaderValue, Response, Uri, header};
use ureq::{Agent, Body};

/// Longer than any answer that is still going to come.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Below the 2 to 5 s after which common servers close an idle connection.
const IDLE_LIMIT: Duration = Duration::from_secs(1);

/// Why a request was not done.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server is away or busy: the same request may work later.
    Away(String),
    /// The server will not do this.
    Refused {
        status: u16,
        code: String,
        message: String,
    },
    /// There is nothing to send: the spool is damaged.
    Damaged(Error),
}

/// A tracking server, and the right to use it.
#[derive(Debug, Clone)]
pub(super) struct Client {
    agent: Agent,
    uri: String,
    /// Marked as secret, so that it is never printed.
    authorization: Option<HeaderValue>,
}

impl Client {
    /// A client for the server at this address. `variable` gives environment variables:
    /// MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.
    ///
    /// # Errors
    /// Not an address of a server, or credentials that no header can carry.
    pub(super) fn new(uri: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let uri = uri.trim_end_matches('/');
        let host = host(uri)?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(ANSWER_LIMIT))
            .timeout_connect(Some(CONNECT_LIMIT))
            .max_idle_age(IDLE_LIMIT)
            .user_agent(concat!("firebox/", env!("CARGO_PKG_VERSION")));
        // A proxy does not reach this machine's own servers.
        let is_here = host == "localhost" || host.starts_with("127.") || host == "[::1]";
        let config = match is_here {
            true => config.proxy(None),
            false => config,
        };
        let tls = ureq::tls::TlsConfig::builder()
            .root_certs(ureq::tls::RootCerts::PlatformVerifier)
            .build();
        Ok(Self {
            agent: config.tls_config(tls).build().new_agent(),
            uri: uri.to_owned(),
            authorization: authorization(variable)?,
        })
    }

    /// The server's address.
    pub(super) fn uri(&self) -> &str {
        &self.uri
    }

    /// Calls a method of the API that changes something.
    pub(super) fn post(&self, method: &str, body: &Value) -> Result<Value, Failure> {
        let url = format!("{}/api/2.0/mlflow/{method}", self.uri);
        let request = self.with_credentials(self.agent.post(url));
        let request = request.header(header::CONTENT_TYPE, "application/json");
        self.json(request.send(body.to_string()))
    }

    /// Calls a method of the API that reads, with one argument.
    pub(super) fn get(&self, method: &str, argument: (&str, &str)) -> Result<Value, Failure> {
        let (name, value) = (argument.0, escape(argument.1));
        let url = format!("{}/api/2.0/mlflow/{method}?{name}={value}", self.uri);
        let request = self.with_credentials(self.agent.get(url));
        self.json(request.call())
    }

    /// Stores an artifact through the server; `path` begins at the root of all artifacts.
    pub(super) fn put_artifact(&self, path: &str, content: &[u8]) -> Result<(), Failure> {
        let root = "api/2.0/mlflow-artifacts/artifacts";
        let url = format!("{}/{root}/{}", self.uri, escape(path));
        let request = self.with_credentials(self.agent.put(url));
        let request = request.header(header::CONTENT_TYPE, "application/octet-stream");
        self.text(request.send(content)).map(drop)
    }

    fn with_credentials<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.authorization {
            Some(value) => request.header(header::AUTHORIZATION, value),
            None => request,
        }
    }

    fn json(&self, answer: Result<Response<Body>, ureq::Error>) -> Result<Value, Failure> {
        let text = self.text(answer)?;
        // A server in front of MLflow that has no better answer yet, or one that was cut short.
        let other = |_| Failure::Away(format!("its answer is not MLflow's: {}", start_of(&text)));
        serde_json::from_str(&text).map_err(other)
    }

    fn text(&self, answer: Result<Response<Body>, ureq::Error>) -> Result<String, Failure> {
        let mut answer = answer.map_err(|e| Failure::Away(e.to_string()))?;
        let text = answer.body_mut().read_to_string();
        let text = text.map_err(|e| Failure::Away(format!("its answer was cut: {e}")))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(text);
        }
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        let field = |name: &str| body.get(name).and_then(Value::as_str);
        let message = field("message").map_or_else(|| start_of(&text), str::to_owned);
        if status.is_server_error() || [408, 425, 429].contains(&status.as_u16()) {
            return Err(Failure::Away(format!("it answers {status}: {message}")));
        }
        let message = match answer.headers().get(header::LOCATION) {
            Some(to) => format!("it redirects to {to:?}; use that address"),
            None if [401, 403].contains(&status.as_u16()) => format!(
                "{message} (credentials are MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and \
                 MLFLOW_TRACKING_PASSWORD)"
            ),
            None => message,
        };
        Err(Failure::Refused {
            status: status.as_u16(),
            code: field("error_code").unwrap_or_default().to_owned(),
            message,
        })
    }
}

/// The host of a server's address.
fn host(uri: &str) -> Result<String> {
    let wrong = |why: &str| {
        Error::config(format!(
            "the MLflow tracking URI is `{uri}`, {why}; use the address of a server, such as \
             http://127.0.0.1:5000 (`mlflow server` starts one, on a database with \
             `--backend-store-uri`)"
        ))
    };
    let parsed: Uri = uri.parse().map_err(|_| wrong("which is no address"))?;
    if !matches!(parsed.scheme_str(), Some("http" | "https")) {
        return Err(wrong("which does not begin with http:// or https://"));
    }
    let authority = parsed.authority().map(|a| a.as_str()).unwrap_or_default();
    if authority.contains('@') {
        // Not shown: it holds a password.
        return Err(Error::config(
            "the MLflow tracking URI holds a user name; give it, and the password, as \
             MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
        ));
    }
    if parsed.query().is_some() {
        return Err(wrong("which holds a `?`"));
    }
    match parsed.host() {
        Some(host) if !host.is_empty() => Ok(host.to_owned()),
        _ => Err(wrong("which names no host")),
    }
}

fn authorization(variable: impl Fn(&str) -> Option<String>) -> Result<Option<HeaderValue>> {
    let user = variable("MLFLOW_TRACKING_USERNAME");
    let password = variable("MLFLOW_TRACKING_PASSWORD");
    // As MLflow's own client has it: a user and a password win over a token.
    let value = match (user, password, variable("MLFLOW_TRACKING_TOKEN")) {
        (Some(user), Some(password), _) => {
            format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
        }
        (_, _, Some(token)) => format!("Bearer {token}"),
        (None, None, None) => return Ok(None),
        (user, _, None) => {
            return Err(Error::config(format!(
                "MLFLOW_TRACKING_{} is set alone; set MLFLOW_TRACKING_USERNAME and \
                 MLFLOW_TRACKING_PASSWORD, or neither",
                if user.is_some() {
                    "USERNAME"
                } else {
                    "PASSWORD"
                }
            )));
        }
    };
    let mut header = HeaderValue::from_str(&value).map_err(|_| {
        Error::config(
            "MLFLOW_TRACKING_TOKEN holds characters that no token has, such as a line end",
        )
    })?;
    header.set_sensitive(true);
    Ok(Some(header))
}

/// Percent-encoding of what may not stand in a path or a query (RFC 3986).
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            true => escaped.push(char::from(byte)),
            false => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

fn start_of(text: &str) -> String {
    text.trim().chars().take(300).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn error(uri: &str, variables: &[(&str, &str)]) -> String {
        Client::new(uri, given(variables)).unwrap_err().to_string()
    }

    fn given(variables: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        move |name| {
            let found = variables.iter().find(|(n, _)| *n == name);
            found.map(|(_, value)| (*value).to_owned())
        }
    }

    #[test]
    fn an_address_that_cannot_work_is_named() {
        for uri in [
            "sqlite:///mlflow.db",
            "databricks",
            "./mlruns",
            "ftp://h",
            "",
        ] {
            let error = error(uri, &[]);
            assert!(
                error.starts_with(&format!("the MLflow tracking URI is `{uri}`")),
                "{error}"
            );
            assert!(error.contains("http://127.0.0.1:5000"), "{error}");
        }
        let error = error("http://me:secret@host", &[]);
        assert!(error.contains("MLFLOW_TRACKING_USERNAME"), "{error}");
        assert!(!error.contains("secret"), "{error}");
        let client = Client::new("https://host/prefix/", given(&[])).unwrap();
        assert_eq!(client.uri(), "https://host/prefix");
    }

    #[test]
    fn credentials_are_sent_and_never_printed() {
        let user = ("MLFLOW_TRACKING_USERNAME", "martin");
        let password = ("MLFLOW_TRACKING_PASSWORD", "secret");
        let token = ("MLFLOW_TRACKING_TOKEN", "abc");
        let basic = authorization(given(&[user, password, token]))
            .unwrap()
            .unwrap();
        assert_eq!(basic.to_str().unwrap(), "Basic bWFydGluOnNlY3JldA==");
        let bearer = authorization(given(&[token])).unwrap().unwrap();
        assert_eq!(bearer.to_str().unwrap(), "Bearer abc");
        let client = Client::new("http://h", given(&[token])).unwrap();
        assert!(!format!("{client:?}").contains("abc"));
        assert!(
            error("http://h", &[password]).starts_with("MLFLOW_TRACKING_PASSWORD is set alone")
        );
        assert!(error("http://h", &[("MLFLOW_TRACKING_TOKEN", "a\nb")]).contains("line end"));
    }

    #[test]
    fn what_may_not_stand_in_a_path_is_escaped() {
        assert_eq!(escape("a b/ü%1.txt"), "a%20b/%C3%BC%251.txt");
    }
}
