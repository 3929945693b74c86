//! Finding the first operation whose result is not finite, and operands that differ in format.

use crate::mode::{self, Rule};
use crate::tensor::{CastTensor, Seen};
use burn_backend::{Backend, DType, FloatDType, TensorMetadata, try_read_sync};
use std::cell::{Cell, RefCell};
use std::fmt;

/// What [`watch`] has found first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The operation, by Burn's name for it.
    pub operation: String,
    /// The parameter that was an operand, or else the last one used before.
    pub parameter: Option<String>,
    /// Whether that parameter was an operand.
    pub is_operand: bool,
    /// The pass in which it was.
    pub pass: Pass,
    /// What was found.
    pub what: What,
}

/// What is wrong with an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The result is not finite, although the operands are.
    NotFinite,
    /// The operands are of several formats.
    Formats(Vec<DType>),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::NotFinite => write!(f, "the first result that is not finite is that of")?,
            What::Formats(formats) => {
                let formats: Vec<_> = formats.iter().map(|f| format!("{f:?}")).collect();
                write!(f, "numbers of {} meet in", formats.join(" and "))?;
            }
        }
        write!(f, " `{}`", self.operation)?;
        match (&self.parameter, self.is_operand) {
            (Some(path), true) => write!(f, " with `{path}`")?,
            (Some(path), false) => write!(f, " after `{path}`")?,
            (None, _) => {}
        }
        match self.pass {
            Pass::Forward => f.write_str(", in the forward pass"),
            Pass::Backward => f.write_str(", in the backward pass"),
        }
    }
}

/// A pass through a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pass {
    /// From the input to the loss.
    #[default]
    Forward,
    /// From the loss to the gradients.
    Backward,
}

thread_local! {
    static IS_ON: Cell<bool> = const { Cell::new(false) };
    static STATE: RefCell<State> = const { RefCell::new(State::NEW) };
}

#[derive(Default)]
struct State {
    found: Option<Finding>,
    last: Option<String>,
    pass: Pass,
}

impl State {
    const NEW: Self = Self {
        found: None,
        last: None,
        pass: Pass::Forward,
    };
}

/// Runs `body` and looks at every float result of this thread on the way; gives the first that is
/// not finite although its operands are, or the first meeting of formats where none is expected.
/// Each result is read from the device, so this is slow.
pub fn watch<T>(body: impl FnOnce() -> T) -> (T, Option<Finding>) {
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_ON.set(false);
            mode::set_quiet();
        }
    }
    STATE.set(State::NEW);
    IS_ON.set(true);
    mode::set_quiet();
    let restore = Restore;
    let result = body();
    drop(restore);
    (result, STATE.take().found)
}

/// Says which pass `body` is.
pub fn in_pass<T>(pass: Pass, body: impl FnOnce() -> T) -> T {
    let before = STATE.with_borrow_mut(|state| std::mem::replace(&mut state.pass, pass));
    let result = body();
    STATE.with_borrow_mut(|state| state.pass = before);
    result
}

/// Whether someone watches this thread who has found nothing so far.
pub(crate) fn is_on() -> bool {
    IS_ON.get()
}

pub(crate) fn formats_meet(operation: &'static str, operands: &[Option<Seen<'_>>]) {
    if is_on() {
        let formats = operands.iter().flatten().map(|seen| seen.dtype);
        found(operation, operands, What::Formats(formats.collect()));
    }
}

/// The operands of an operation before it: the parameter among them if there is one, or nothing at
/// all if they are not finite themselves.
pub(crate) fn operands<'a, B: Backend>(
    seen: &[Option<Seen<'_>>],
    operands: impl IntoIterator<Item = Option<&'a B::FloatTensorPrimitive>>,
) -> Option<Option<String>> {
    let parameter = seen.iter().flatten().find_map(|seen| seen.tag);
    let parameter = parameter.map(|tag| tag.path.clone());
    if let Some(path) = &parameter {
        STATE.with_borrow_mut(|state| state.last = Some(path.clone()));
    }
    let mut operands = operands.into_iter().flatten();
    operands
        .all(|operand| is_finite::<B>(operand))
        .then_some(parameter)
}

/// The result of an operation on finite operands.
pub(crate) fn result<B: Backend>(
    rule: Rule,
    operation: &'static str,
    parameter: Option<String>,
    result: &CastTensor<B::FloatTensorPrimitive>,
) {
    let is_meant = matches!(rule, Rule::Made | Rule::Masks);
    if !is_meant && !is_finite::<B>(&result.primitive) {
        note(operation, parameter, What::NotFinite);
    }
}

fn found(operation: &'static str, operands: &[Option<Seen<'_>>], what: What) {
    let parameter = operands.iter().flatten().find_map(|seen| seen.tag);
    note(operation, parameter.map(|tag| tag.path.clone()), what);
}

fn note(operation: &'static str, parameter: Option<String>, what: What) {
    STATE.with_borrow_mut(|state| {
        let is_operand = parameter.is_some();
        state.found.get_or_insert(Finding {
            operation: operation.trim_start_matches("float_").to_owned(),
            parameter: parameter.or_else(|| state.last.clone()),
            is_operand,
            pass: state.pass,
            what,
        });
    });
    IS_ON.set(false);
    mode::set_quiet();
}

fn is_finite<B: Backend>(tensor: &B::FloatTensorPrimitive) -> bool {
    // A sum in 16 bits overflows where its numbers do not.
    let wide = match tensor.dtype() {
        DType::F16 | DType::BF16 => B::float_cast(tensor.clone(), FloatDType::F32),
        _ => tensor.clone(),
    };
    match try_read_sync(B::float_into_data(wide)) {
        Some(Ok(data)) => data.iter::<f64>().all(f64::is_finite),
        // What cannot be read is reported elsewhere.
        _ => true,
    }
}
