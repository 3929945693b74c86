//! No live bar: the feature `progress` is off, so there are plain lines only.

#[derive(Debug)]
pub(super) struct Bar;

impl Bar {
    pub(super) const AVAILABLE: bool = false;

    pub(super) fn new(_label: &str, _total: Option<usize>, _done: usize) -> Self {
        Self
    }

    pub(super) fn advance(&self, _message: &str) {}

    pub(super) fn finish(&self) {}
}
