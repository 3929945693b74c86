//! Which format an operation computes in.

use crate::tensor::Seen;
use crate::watch;
use burn_backend::{DType, FloatDType};
use std::cell::Cell;

/// How formats are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// In the operands' own format; where they differ, in the widest.
    #[default]
    AsGiven,
    /// Products in this format of 16 bits, what needs more in 32 bits.
    Mixed(FloatDType),
    /// Everything in this format.
    Whole(FloatDType),
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::AsGiven) };
    /// Whether operations are neither brought into a format nor watched.
    static IS_QUIET: Cell<bool> = const { Cell::new(true) };
}

pub(crate) fn is_quiet() -> bool {
    IS_QUIET.get()
}

pub(crate) fn set_quiet() {
    IS_QUIET.set(MODE.get() == Mode::AsGiven && !watch::is_on());
}

/// Runs `body` in this mode, on this thread.
pub fn within<T>(mode: Mode, body: impl FnOnce() -> T) -> T {
    struct Restore(Mode);
    impl Drop for Restore {
        fn drop(&mut self) {
            MODE.set(self.0);
            set_quiet();
        }
    }
    let _restore = Restore(MODE.replace(mode));
    set_quiet();
    body()
}

pub(crate) fn current() -> Mode {
    MODE.get()
}

/// What an operation asks of its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Makes a tensor of none.
    Made,
    /// Gives the same numbers in another arrangement.
    View,
    /// Computes in the format of its only operand.
    AsIs,
    /// As [`AsIs`](Self::AsIs), and may write infinities on purpose.
    Masks,
    /// Computes on two operands, element by element.
    Join,
    /// Adds up what may be many numbers; never in fewer bits than an operand has.
    Widest,
    /// Is a product, as good in 16 bits as in 32.
    Narrow,
    /// Needs 32 bits, and so does what comes out.
    Wide,
    /// Needs 32 bits inside.
    Through,
}

/// The formats of one call: into which its operands are brought, and its result.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Plan {
    pub(crate) operands: Option<FloatDType>,
    pub(crate) result: Option<FloatDType>,
}

/// Whether all operands that are floats have the same format.
pub(crate) fn is_one_format<const N: usize>(operands: &[Option<Seen<'_>>; N]) -> bool {
    let mut formats = operands.iter().flatten().map(|seen| seen.dtype);
    formats
        .next()
        .is_none_or(|first| formats.all(|other| other == first))
}

/// Chooses the formats of an operation.
pub(crate) fn plan(rule: Rule, operation: &'static str, operands: &[Option<Seen<'_>>]) -> Plan {
    let mut formats = operands.iter().flatten().map(|seen| seen.dtype);
    let Some(first) = formats.next() else {
        return Plan::default();
    };
    let is_one_format = formats.all(|other| other == first);
    let mode = current();
    if is_one_format && (mode == Mode::AsGiven || !rule.looks_at_one()) {
        return Plan::default();
    }
    if !is_one_format && !matches!(mode, Mode::Mixed(_)) {
        watch::formats_meet(operation, operands);
    }
    let (operands, result) = choose(rule, mode, operands);
    Plan { operands, result }
}

impl Rule {
    /// Whether the format matters even where all operands have the same.
    fn looks_at_one(self) -> bool {
        matches!(self, Self::Narrow | Self::Wide | Self::Through)
    }
}

/// The format of the operands, and that of the result if it is another.
fn choose(
    rule: Rule,
    mode: Mode,
    operands: &[Option<Seen<'_>>],
) -> (Option<FloatDType>, Option<FloatDType>) {
    let joined = joined(mode, rule, operands);
    let wide = widest([joined, FloatDType::F32]);
    match (rule, mode) {
        (Rule::Made | Rule::View | Rule::AsIs | Rule::Masks, _) => (None, None),
        (Rule::Join | Rule::Widest, _) | (_, Mode::AsGiven) => (Some(joined), None),
        (Rule::Narrow, Mode::Whole(format)) => (Some(format), None),
        (Rule::Narrow, Mode::Mixed(half)) => {
            let mut tags = operands.iter().flatten().filter_map(|seen| seen.tag);
            match tags.any(|tag| tag.keeps) {
                true => (Some(wide), None),
                false => (Some(half), None),
            }
        }
        (Rule::Wide, Mode::Mixed(_)) => (Some(wide), None),
        (Rule::Wide | Rule::Through, _) => (Some(wide), Some(joined)),
    }
}

/// One format for all operands.
fn joined(mode: Mode, rule: Rule, operands: &[Option<Seen<'_>>]) -> FloatDType {
    let seen = || operands.iter().flatten();
    let all = || seen().map(|seen| float(seen.dtype));
    match mode {
        Mode::Whole(format) => format,
        // A bias would make 32 bits of all that it is added to, from there on.
        Mode::Mixed(half) if rule != Rule::Widest && all().any(|format| format == half) => {
            let is_cast = |seen: &&Seen<'_>| seen.tag.is_some_and(|tag| !tag.keeps);
            let others = seen().filter(|seen| !is_cast(seen));
            widest(others.map(|seen| float(seen.dtype)).chain([half]))
        }
        _ => widest(all()),
    }
}

fn float(dtype: DType) -> FloatDType {
    match dtype {
        DType::F64 => FloatDType::F64,
        DType::Flex32 => FloatDType::Flex32,
        DType::F16 => FloatDType::F16,
        DType::BF16 => FloatDType::BF16,
        _ => FloatDType::F32,
    }
}

/// The format that holds what any of these hold.
fn widest(formats: impl IntoIterator<Item = FloatDType>) -> FloatDType {
    let wider = |a: FloatDType, b: FloatDType| match (rank(a), rank(b)) {
        _ if a == b => a,
        // Neither of the formats of 16 bits holds the other.
        (0, 0) => FloatDType::F32,
        (rank_of_a, rank_of_b) if rank_of_a >= rank_of_b => a,
        _ => b,
    };
    formats.into_iter().reduce(wider).unwrap_or(FloatDType::F32)
}

fn rank(format: FloatDType) -> u8 {
    match format {
        FloatDType::F16 | FloatDType::BF16 => 0,
        FloatDType::Flex32 => 1,
        FloatDType::F32 => 2,
        FloatDType::F64 => 3,
    }
}
