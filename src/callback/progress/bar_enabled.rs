//! A live bar.

use indicatif::{ProgressBar, ProgressStyle};

#[derive(Debug)]
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) const AVAILABLE: bool = true;

    /// A bar whose first `done` parts were done before.
    pub(super) fn new(label: &str, total: Option<usize>, done: usize) -> Self {
        let bar = match total {
            Some(total) => ProgressBar::new(total as u64),
            None => ProgressBar::no_length(),
        };
        let template = match total {
            Some(_) => "{prefix} {bar:30} {pos}/{len} {per_sec} eta {eta}  {wide_msg}",
            None => "{prefix} {spinner} {pos} {per_sec}  {wide_msg}",
        };
        // A template that indicatif cannot read only costs the looks.
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(label.to_owned());
        bar.set_position(done as u64);
        bar.reset_eta();
        Self(bar)
    }

    pub(super) fn advance(&self, message: &str) {
        if !message.is_empty() {
            self.0.set_message(message.to_owned());
        }
        self.0.inc(1);
    }

    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
