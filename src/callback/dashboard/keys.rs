//! Keys, from the bytes that a terminal in raw mode sends.

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// Arrow down or right, tab, `j`.
    Next,
    /// Arrow up or left, shift and tab, `k`.
    Previous,
    /// `q`.
    Close,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-\.
    Quit,
    /// Ctrl-Z.
    Suspend,
    /// Every other key.
    Other,
}

/// Reads keys; a sequence may come in parts.
#[derive(Debug, Default)]
pub(super) struct Keys(State);

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Ground,
    /// After Esc.
    Escape,
    /// After `Esc [` or `Esc O`, until a byte that ends it.
    Sequence,
}

impl Keys {
    /// The keys of these bytes.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<Key> {
        bytes.iter().filter_map(|byte| self.byte(*byte)).collect()
    }

    fn byte(&mut self, byte: u8) -> Option<Key> {
        let before = std::mem::take(&mut self.0);
        let control = match byte {
            0x03 => Some(Key::Interrupt),
            0x1a => Some(Key::Suspend),
            0x1c => Some(Key::Quit),
            _ => None,
        };
        // Whatever came before it: these are to work always.
        if control.is_some() {
            return control;
        }
        match (before, byte) {
            (State::Ground | State::Escape, 0x1b) => {
                self.0 = State::Escape;
                None
            }
            (State::Escape, b'[' | b'O') => {
                self.0 = State::Sequence;
                None
            }
            (State::Sequence, b'A' | b'D' | b'Z') => Some(Key::Previous),
            (State::Sequence, b'B' | b'C') => Some(Key::Next),
            (State::Sequence, 0x40..=0x7e) => Some(Key::Other),
            (State::Sequence, 0x20..=0x3f) => {
                self.0 = State::Sequence;
                None
            }
            (_, b'j' | b'\t') => Some(Key::Next),
            (_, b'k') => Some(Key::Previous),
            (_, b'q' | b'Q') => Some(Key::Close),
            _ => Some(Key::Other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Key::{Close, Interrupt, Next, Other, Previous, Quit, Suspend};
    use super::*;

    #[test]
    fn each_key() {
        let mut keys = Keys::default();
        let read = keys.feed(b"jk\tq\x1b[A\x1b[B\x1bOA\x1bOB\x1b[C\x1b[D\x1b[Zx \x03\x1a\x1c");
        let expected = [
            Next, Previous, Next, Close, Previous, Next, Previous, Next, Next, Previous, Previous,
            Other, Other, Interrupt, Suspend, Quit,
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn a_sequence_in_parts() {
        let mut keys = Keys::default();
        assert_eq!(keys.feed(b"\x1b"), []);
        assert_eq!(keys.feed(b"["), []);
        assert_eq!(keys.feed(b"1;5"), []);
        assert_eq!(keys.feed(b"B"), [Next]);
        assert_eq!(keys.feed(b"\x1b[200~"), [Other]);
    }

    #[test]
    fn ctrl_c_works_inside_of_a_sequence() {
        let mut keys = Keys::default();
        assert_eq!(keys.feed(b"\x1b[\x03q"), [Interrupt, Close]);
        assert_eq!(keys.feed(b"\x1b\x1b\x1bq"), [Close]);
    }

    #[test]
    fn any_bytes_are_keys_of_some_sort() {
        let mut keys = Keys::default();
        let all: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
        assert!(keys.feed(&all).contains(&Other));
    }
}
