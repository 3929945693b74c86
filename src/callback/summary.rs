//! A table of the model's layers.

use super::{Callback, RunContext};
use crate::error::Result;
use crate::module::{TrainModule, short_type_name};
use crate::output::say;
use crate::table;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{Bool, Int, Tensor};

/// Prints the model's layers, their parameters' shapes and counts when training starts.
///
/// ```
/// # use firebox::testing::{Line, Cpu};
/// use firebox::callback::ModelSummary;
///
/// let model = Line::<Cpu>::new(&Default::default());
/// let table = ModelSummary::of(&model);
/// assert!(table.contains("weight [1, 1]"), "{table}");
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct ModelSummary;

impl ModelSummary {
    /// Prints to standard error when training starts.
    pub fn new() -> Self {
        Self
    }

    /// The table of a model: one row for each layer that holds parameters.
    pub fn of<B: Backend, M: Module<B>>(model: &M) -> String {
        let mut layers = Layers::default();
        model.visit(&mut layers);
        let rows: Vec<[String; 4]> = layers
            .rows
            .iter()
            .map(|row| {
                [
                    row.path.clone(),
                    row.kind.clone(),
                    row.shapes.join(", "),
                    with_separators(row.parameters),
                ]
            })
            .collect();
        let total: usize = layers.rows.iter().map(|row| row.parameters).sum();
        format!(
            "{}{}: {} parameters",
            table::render(["layer", "type", "shapes", "parameters"], &rows),
            short_type_name::<M>(),
            with_separators(total)
        )
    }
}

impl<M: TrainModule> Callback<M> for ModelSummary {
    fn on_fit_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        say!("{}", Self::of(cx.model()));
        Ok(())
    }
}

struct Row {
    path: String,
    kind: String,
    shapes: Vec<String>,
    parameters: usize,
}

#[derive(Default)]
struct Layers {
    /// Names from the root to here, each with its container's type.
    stack: Vec<(String, String)>,
    rows: Vec<Row>,
}

impl Layers {
    fn parameter(&mut self, shape: &[usize]) {
        let (name, layers) = match self.stack.split_last() {
            Some(((name, _), layers)) => (name.as_str(), layers),
            None => ("", [].as_slice()),
        };
        let path: Vec<_> = layers.iter().map(|(name, _)| name.as_str()).collect();
        let path = path.join(".");
        // The type that holds a parameter is what the parameter's own entry says.
        let kind = self.stack.last().map_or("", |(_, kind)| kind.as_str());
        let kind = kind.split_once(':').map_or(kind, |(_, name)| name);
        let shape_text = format!("{name} {shape:?}");
        let parameters: usize = shape.iter().product();
        match self.rows.last_mut() {
            Some(row) if row.path == path => {
                row.shapes.push(shape_text);
                row.parameters += parameters;
            }
            _ => self.rows.push(Row {
                path,
                kind: kind.to_owned(),
                shapes: vec![shape_text],
                parameters,
            }),
        }
    }
}

impl<B: Backend> ModuleVisitor<B> for Layers {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.parameter(&param.val().dims());
    }
    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        self.parameter(&param.val().dims());
    }
    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, Bool>>) {
        self.parameter(&param.val().dims());
    }
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.stack.push((name.into(), container_type.into()));
    }
    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.stack.pop();
    }
}

/// 12345678 as `12,345,678`.
fn with_separators(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::with_separators;

    #[test]
    fn thousands() {
        let text = [0, 999, 1000, 12_345_678].map(with_separators);
        assert_eq!(text, ["0", "999", "1,000", "12,345,678"]);
    }
}
