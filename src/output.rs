//! What the library prints. Standard error may be a pipe that nobody reads any more, or a full disk:
//! `eprintln!` panics then, and a run is not to end for a line.

/// `eprintln!` that goes on where the line cannot be written.
macro_rules! say {
    ($($line:tt)*) => {{
        use std::io::Write;
        // There is nobody to tell.
        let _ = writeln!(std::io::stderr(), $($line)*);
    }};
}
pub(crate) use say;

/// Text on standard output, of which the same is true.
pub(crate) fn print(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout();
    // There is nobody to tell.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
