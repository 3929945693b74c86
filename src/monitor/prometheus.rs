//! A run's metrics over HTTP, for Prometheus to scrape.

use super::gauges::Gauges;
use crate::error::{Error, ErrorKind, Result};
use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a client may take to ask, and again to take the answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The longest request, without its body, in bytes.
const REQUEST_LIMIT: usize = 8 * 1024;

/// How many clients are served at once.
const CONNECTIONS: usize = 16;

/// Serves `GET /metrics` in the Prometheus text format while it lives. Every client has a thread of
/// its own for as long as its answer takes: none of them, slow, silent or hostile, holds up the
/// trainer or another client. Dropping it closes the port.
pub(crate) struct MetricsServer {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    gauges: Gauges,
    timeout: Duration,
    stopped: AtomicBool,
    connections: AtomicUsize,
}

impl MetricsServer {
    /// Listens at the address, with port 0 at a free port. `run` is the run's name in the metrics.
    ///
    /// # Errors
    /// An address that is in use, not this machine's or not allowed.
    pub(crate) fn bind(addr: SocketAddr, run: &str) -> Result<Self> {
        Self::start(addr, run, TIMEOUT)
    }

    fn start(addr: SocketAddr, run: &str, timeout: Duration) -> Result<Self> {
        let listener = TcpListener::bind(addr).map_err(|e| bind_error(addr, e))?;
        let addr = listener.local_addr().map_err(|e| bind_error(addr, e))?;
        let shared = Arc::new(Shared {
            gauges: Gauges::new(run),
            timeout,
            stopped: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
        });
        let accepting = std::thread::Builder::new()
            .name("firebox-metrics".into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || accept(&listener, &shared)
            })
            .map_err(|e| {
                let message = "cannot start the thread that serves the metrics";
                Error::new(ErrorKind::Io, message).with_source(e)
            })?;
        Ok(Self {
            addr,
            shared,
            accepting: Some(accepting),
        })
    }

    /// The address, with the port that was free where 0 was asked for.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What it shows.
    pub(crate) fn gauges(&self) -> &Gauges {
        &self.shared.gauges
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        let Some(accepting) = self.accepting.take() else {
            return;
        };
        self.shared.stopped.store(true, Ordering::Release);
        // The thread waits for a client, or for better times after an error. A connection ends the
        // first wait, and where none can be made the thread is left to the next client.
        accepting.thread().unpark();
        let mut addr = self.addr;
        match addr.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => addr.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => addr.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        if TcpStream::connect_timeout(&addr, TIMEOUT).is_ok() || accepting.is_finished() {
            // It runs no code of the user's; a panic has been printed already.
            let _ = accepting.join();
        }
    }
}

fn bind_error(addr: SocketAddr, source: std::io::Error) -> Error {
    let why = match source.kind() {
        IoErrorKind::AddrInUse => {
            "another program uses this port; choose another one, or 0 for any that is free"
        }
        IoErrorKind::AddrNotAvailable => {
            "this machine has no such address; use 127.0.0.1 for scrapes from this machine, or \
             0.0.0.0 for scrapes from others"
        }
        IoErrorKind::PermissionDenied => "this port is not allowed; choose one from 1024 on",
        _ => "choose another address",
    };
    Error::config(format!("cannot serve metrics at `{addr}`: {why}")).with_source(source)
}

/// Accepts clients until the server is dropped.
fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let client = listener.accept();
        if shared.stopped.load(Ordering::Acquire) {
            return;
        }
        match client {
            Ok((stream, _)) => hand_over(stream, shared),
            // Mostly too many open files, which would fail again at once. The scraper sees it, too.
            Err(_) => std::thread::park_timeout(Duration::from_millis(100)),
        }
    }
}

fn hand_over(mut stream: TcpStream, shared: &Arc<Shared>) {
    let Some(slot) = Slot::take(shared) else {
        // The answer is small enough for the socket's buffer; where it is not, it is let go.
        if stream.set_nonblocking(true).is_ok() {
            let _ = stream.write(response(Err(BUSY), &shared.gauges).as_bytes());
        }
        return;
    };
    // Where no thread can be had, the connection is closed, and the scraper comes again.
    let _ = std::thread::Builder::new()
        .name("firebox-metrics".into())
        .spawn(move || {
            // Errors are those of a client that went away.
            let _ = serve(&mut stream, &slot.0);
        });
}

/// One of the clients that are served at once.
struct Slot(Arc<Shared>);

impl Slot {
    fn take(shared: &Arc<Shared>) -> Option<Self> {
        let taken = shared.connections.fetch_add(1, Ordering::AcqRel);
        // Above the limit it is given back at once, by the drop.
        let slot = Self(Arc::clone(shared));
        (taken < CONNECTIONS).then_some(slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A refusal: the status that goes with it.
type Status = &'static str;

const BAD_REQUEST: Status = "400 Bad Request";
const NOT_FOUND: Status = "404 Not Found";
const NOT_ALLOWED: Status = "405 Method Not Allowed";
const TIMED_OUT: Status = "408 Request Timeout";
const TOO_LARGE: Status = "431 Request Header Fields Too Large";
const BUSY: Status = "503 Service Unavailable";

fn serve(stream: &mut TcpStream, shared: &Shared) -> std::io::Result<()> {
    let deadline = Instant::now() + shared.timeout;
    let mut request = Vec::new();
    let asked = match read_request(stream, &mut request, deadline)? {
        Some(Ok(())) => parse(&request),
        Some(Err(refusal)) => Err(refusal),
        // It hung up without a word, as port scanners and health checks do.
        None => return Ok(()),
    };
    let deadline = Instant::now() + shared.timeout;
    let answer = response(asked, &shared.gauges);
    let mut rest = answer.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(remaining(deadline)?))?;
        match stream.write(rest)? {
            0 => return Ok(()),
            written => rest = &rest[written..],
        }
    }
    // Closing while something is unread resets the connection, and the client may lose the answer.
    stream.shutdown(Shutdown::Write)?;
    let mut unread = [0; 4096];
    loop {
        stream.set_read_timeout(Some(remaining(deadline)?))?;
        if stream.read(&mut unread)? == 0 {
            return Ok(());
        }
    }
}

fn remaining(deadline: Instant) -> std::io::Result<Duration> {
    let remaining = deadline.saturating_duration_since(Instant::now());
    if remaining.is_zero() {
        return Err(IoErrorKind::TimedOut.into());
    }
    Ok(remaining)
}

/// Reads up to the empty line behind the header, or what comes instead.
fn read_request(
    stream: &mut TcpStream,
    request: &mut Vec<u8>,
    deadline: Instant,
) -> std::io::Result<Option<std::result::Result<(), Status>>> {
    let mut buffer = [0; 1024];
    loop {
        let seen = request.len();
        // One deadline for all of it: a client that sends a byte now and then is slow, too.
        let read = remaining(deadline).and_then(|time| {
            stream.set_read_timeout(Some(time))?;
            stream.read(&mut buffer)
        });
        match read {
            Ok(0) if request.is_empty() => return Ok(None),
            Ok(0) => return Ok(Some(Err(BAD_REQUEST))),
            Ok(read) => request.extend_from_slice(&buffer[..read]),
            Err(e) if e.kind() == IoErrorKind::Interrupted => continue,
            Err(e) if matches!(e.kind(), IoErrorKind::TimedOut | IoErrorKind::WouldBlock) => {
                return Ok(Some(Err(TIMED_OUT)));
            }
            Err(e) => return Err(e),
        }
        if !request[0].is_ascii_uppercase() {
            // Another protocol; it would wait for an answer before it says more.
            return Ok(Some(Err(BAD_REQUEST)));
        }
        let new = &request[seen.saturating_sub(3)..];
        let ends = |end: &[u8]| new.windows(end.len()).any(|part| part == end);
        if ends(b"\r\n\r\n") || ends(b"\n\n") {
            return Ok(Some(Ok(())));
        }
        if request.len() > REQUEST_LIMIT {
            return Ok(Some(Err(TOO_LARGE)));
        }
    }
}

/// What a request asks for.
struct Asked {
    page: Page,
    /// `HEAD`: the answer without its body.
    head: bool,
}

enum Page {
    Index,
    Metrics,
}

fn parse(request: &[u8]) -> std::result::Result<Asked, Status> {
    let line = request.split(|byte| *byte == b'\n').next();
    let line = line.and_then(|line| std::str::from_utf8(line).ok());
    let line = line.ok_or(BAD_REQUEST)?.trim_end_matches('\r');
    let parts: Vec<&str> = line.split(' ').collect();
    let [method, target, version] = parts[..] else {
        return Err(BAD_REQUEST);
    };
    let is_method = method.bytes().all(|byte| byte.is_ascii_uppercase());
    if !is_method || !target.starts_with('/') || !version.starts_with("HTTP/1.") {
        return Err(BAD_REQUEST);
    }
    let page = match target.split('?').next() {
        Some("/") => Page::Index,
        Some("/metrics") => Page::Metrics,
        _ => return Err(NOT_FOUND),
    };
    match method {
        "GET" | "HEAD" => Ok(Asked {
            page,
            head: method == "HEAD",
        }),
        _ => Err(NOT_ALLOWED),
    }
}

fn response(asked: std::result::Result<Asked, Status>, gauges: &Gauges) -> String {
    let head = matches!(asked, Ok(Asked { head: true, .. }));
    let (status, kind, body) = match asked {
        Ok(Asked { page, .. }) => match page {
            Page::Metrics => ("200 OK", "text/plain; version=0.0.4", gauges.text()),
            Page::Index => (
                "200 OK",
                "text/plain",
                "The metrics of this run are at /metrics.\n".into(),
            ),
        },
        Err(refusal) => (refusal, "text/plain", format!("{refusal}\n")),
    };
    let allow = if status == NOT_ALLOWED {
        "Allow: GET, HEAD\r\n"
    } else {
        ""
    };
    let length = body.len();
    let body = if head { "" } else { &body };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {length}\r\n\
         {allow}Connection: close\r\n\r\n{body}"
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Longer than any test takes.
    const LONG: Duration = Duration::from_secs(3600);

    fn server(timeout: Duration) -> MetricsServer {
        MetricsServer::start((Ipv4Addr::LOCALHOST, 0).into(), "a run", timeout).unwrap()
    }

    fn connect(server: &MetricsServer) -> TcpStream {
        TcpStream::connect(server.addr()).unwrap()
    }

    fn ask(server: &MetricsServer, request: &[u8]) -> String {
        let mut stream = connect(server);
        stream.write_all(request).unwrap();
        read(&mut stream)
    }

    fn read(stream: &mut TcpStream) -> String {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn status(answer: &str) -> &str {
        answer.lines().next().unwrap_or(answer)
    }

    #[test]
    fn a_scrape() {
        let server = server(LONG);
        server.gauges().count(7, 1, 14, 448);
        server.gauges().set("train/loss", 0.25);
        let answer = ask(
            &server,
            b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain;version=0.0.4\r\n\r\n",
        );
        let (header, body) = answer.split_once("\r\n\r\n").unwrap();
        let expected = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
             Content-Length: {}\r\nConnection: close",
            body.len()
        );
        assert_eq!(header, expected);
        let info = format!(
            "firebox_info{{version=\"{}\",run=\"a run\"}} 1",
            env!("CARGO_PKG_VERSION")
        );
        for line in [
            info.as_str(),
            "firebox_steps_total 7",
            "firebox_batches_total 14",
            "firebox_samples_total 448",
            "firebox_epoch 1",
            "firebox_loss 0.25",
        ] {
            assert!(body.lines().any(|l| l == line), "{line}\n{body}");
        }
        server.gauges().set("train/loss", 0.125);
        let again = ask(&server, b"GET /metrics?name=x HTTP/1.0\n\n");
        assert!(again.contains("\nfirebox_loss 0.125\n"), "{again}");
    }

    #[test]
    fn head_and_the_index() {
        let server = server(LONG);
        let index = ask(&server, b"GET / HTTP/1.1\r\n\r\n");
        let expected = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n\
                        Content-Length: 41\r\nConnection: close\r\n\r\n\
                        The metrics of this run are at /metrics.\n";
        assert_eq!(index, expected);
        let head = ask(&server, b"HEAD / HTTP/1.1\r\n\r\n");
        assert_eq!(head, expected.split_inclusive("\r\n\r\n").next().unwrap());
    }

    #[test]
    fn what_is_no_request_for_it_is_refused() {
        let server = server(LONG);
        let long = [b"GET / HTTP/1.1\r\nX: ".as_slice(), &[b'a'; 100_000]].concat();
        let cases: [(&[u8], Status); 15] = [
            (b"GET /nowhere HTTP/1.1\r\n\r\n", NOT_FOUND),
            (b"GET /metrics/ HTTP/1.1\r\n\r\n", NOT_FOUND),
            (b"POST /nowhere HTTP/1.1\r\n\r\n", NOT_FOUND),
            (
                b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
                NOT_ALLOWED,
            ),
            (b"DELETE / HTTP/1.1\r\n\r\n", NOT_ALLOWED),
            (b"get / HTTP/1.1\r\n\r\n", BAD_REQUEST),
            (b"GET /\r\n\r\n", BAD_REQUEST),
            (b"GET / HTTP/2.0\r\n\r\n", BAD_REQUEST),
            (b"GET  / HTTP/1.1\r\n\r\n", BAD_REQUEST),
            (b"GET http://a/metrics HTTP/1.1\r\n\r\n", BAD_REQUEST),
            (b"GET /\xff HTTP/1.1\r\n\r\n", BAD_REQUEST),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", BAD_REQUEST),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", BAD_REQUEST),
            (b"\r\n\r\n", BAD_REQUEST),
            (&long, TOO_LARGE),
        ];
        for (request, expected) in cases {
            let answer = ask(&server, request);
            let shown = String::from_utf8_lossy(&request[..request.len().min(40)]);
            assert_eq!(status(&answer), format!("HTTP/1.1 {expected}"), "{shown}");
            let allows = answer.contains("\r\nAllow: GET, HEAD\r\n");
            assert_eq!(allows, expected == NOT_ALLOWED, "{shown}");
        }
    }

    #[test]
    fn a_client_that_hangs_up_half_way() {
        let server = server(LONG);
        let mut stream = connect(&server);
        stream.write_all(b"GET /metr").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(status(&read(&mut stream)), "HTTP/1.1 400 Bad Request");
        let mut stream = connect(&server);
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read(&mut stream), "");
        let mut stream = connect(&server);
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        drop(stream);
        let answer = ask(&server, b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(status(&answer), "HTTP/1.1 200 OK");
    }

    #[test]
    fn a_silent_client_is_sent_away() {
        let server = server(Duration::from_millis(1));
        let mut stream = connect(&server);
        let answer = read(&mut stream);
        // The time for the answer is as short here, so that it may end before the answer.
        assert!(answer.is_empty() || status(&answer) == "HTTP/1.1 408 Request Timeout");
    }

    #[test]
    fn silent_clients_block_neither_a_scrape_nor_the_trainer() {
        let server = server(LONG);
        let mut silent: Vec<TcpStream> = (1..CONNECTIONS).map(|_| connect(&server)).collect();
        for stream in &mut silent {
            stream
                .write_all(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
                .unwrap();
        }
        // One place is left. It is free again soon after each answer, not before it.
        for step in 1..=3 {
            server.gauges().count(step, 0, step, step);
            let answer = ask_until_served(&server);
            assert!(answer.contains(&format!("\nfirebox_steps_total {step}\n")));
        }
        silent.push(connect_at_last_place(&server));
        let mut refused = connect(&server);
        assert_eq!(
            status(&read(&mut refused)),
            "HTTP/1.1 503 Service Unavailable"
        );
        drop(silent);
        ask_until_served(&server);
    }

    /// A scrape by a client that comes again when there was no place for it.
    fn ask_until_served(server: &MetricsServer) -> String {
        loop {
            let mut stream = connect(server);
            // Refused clients may find the connection closed already.
            let mut answer = String::new();
            let asked = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
            let read = asked.and_then(|()| stream.read_to_string(&mut answer));
            if read.is_ok() && status(&answer) == "HTTP/1.1 200 OK" {
                return answer;
            }
        }
    }

    /// A client that has the last place.
    fn connect_at_last_place(server: &MetricsServer) -> TcpStream {
        let served = |count| server.shared.connections.load(Ordering::Acquire) == count;
        while !served(CONNECTIONS - 1) {
            std::thread::yield_now();
        }
        let stream = connect(server);
        while !served(CONNECTIONS) {
            std::thread::yield_now();
        }
        stream
    }

    #[test]
    fn dropping_it_frees_the_port() {
        let first = server(LONG);
        let addr = first.addr();
        assert_ne!(addr.port(), 0);
        let mut silent = connect(&first);
        silent.write_all(b"GET").unwrap();
        drop(first);
        let second = bind_freed(addr);
        let answer = ask(&second, b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(status(&answer), "HTTP/1.1 200 OK");
        drop(second);
        let everywhere = bind_freed((Ipv4Addr::UNSPECIFIED, addr.port()).into());
        drop(everywhere);
        drop(bind_freed(addr));
    }

    /// A process that another test starts has a copy of every socket until it runs its program, and
    /// holds the port for that moment. A port that is not freed at all makes this hang.
    fn bind_freed(addr: SocketAddr) -> MetricsServer {
        loop {
            match MetricsServer::start(addr, "", LONG) {
                Ok(server) => return server,
                Err(e) if e.to_string().contains("another program uses this port") => {
                    std::thread::yield_now();
                }
                Err(e) => unreachable!("{e}"),
            }
        }
    }

    #[test]
    fn addresses_that_do_not_work() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = taken.local_addr().unwrap();
        let error = MetricsServer::bind(addr, "").err().unwrap();
        let expected = format!(
            "cannot serve metrics at `{addr}`: another program uses this port; choose another one, \
             or 0 for any that is free: "
        );
        assert!(error.to_string().starts_with(&expected), "{error}");
        assert_eq!(error.exit_code(), 2);
        // Of the range for documentation: no machine has it.
        let error = MetricsServer::bind(([192, 0, 2, 1], 0).into(), "").err();
        let error = error.unwrap().to_string();
        assert!(
            error.contains("this machine has no such address; use 127.0.0.1"),
            "{error}"
        );
    }
}
