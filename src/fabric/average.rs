//! A model's gradients and parameters as lists of numbers that ranks share, and back.

use super::weights::Weighted;
use crate::accelerators::on_host;
use crate::distributed::{Group, Mean, Pieces, Share, Values};
use crate::error::{Error, ErrorKind, Result};
use crate::module::TrainModule;
use crate::optim::Gradients;
use crate::panics;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use std::vec::IntoIter;

/// The mean of all ranks' gradients, and the first rank's note. None if nothing weighs anything.
pub(super) fn mean<M: TrainModule>(
    model: &M,
    mine: Weighted,
    note: Vec<f64>,
    group: &Group,
) -> Result<(Option<Gradients>, Vec<f64>)> {
    let mean = group.mean(Share {
        weight: mine.weight * mine.first,
        pieces: taken(model, mine.gradients, mine.first)?,
        note,
    })?;
    let Mean {
        pieces,
        squares,
        weight,
        note,
    } = mean;
    if weight <= 0.0 {
        return Ok((None, note));
    }
    if !on_host::<M::Backend>() {
        drain(model)?;
    }
    Ok((Some(given(model, pieces, &squares)?), note))
}

/// Waits until the devices have computed what is pending, which is something else on every rank (a
/// loss to be logged, or nothing). The update would be joined with it into kernels that round in
/// another way.
fn drain<M: TrainModule>(model: &M) -> Result<()> {
    for device in model.devices() {
        M::Backend::sync(&device).map_err(|e| {
            let error = Error::new(ErrorKind::Backend, "cannot wait for the device");
            error.with_source(format!("{e:?}"))
        })?;
    }
    Ok(())
}

/// Σ of all ranks' gradients, and of what they weigh, relative to the same as before.
pub(super) fn sum<M: TrainModule>(model: &M, mine: Weighted, group: &Group) -> Result<Weighted> {
    let Weighted {
        gradients,
        weight,
        first,
    } = mine;
    let pieces = taken(model, gradients, first)?;
    let mut sum = group.sum(pieces, weight * first)?;
    if first != 1.0 {
        let pieces = sum.pieces.iter_mut().zip(&mut sum.squares);
        for (piece, squares) in pieces {
            *squares = piece.as_mut().map_or(0.0, |piece| piece.scale(1.0 / first));
        }
    }
    let gradients = match sum.pieces.iter().any(Option::is_some) {
        true => Some(given(model, sum.pieces, &sum.squares)?),
        false => None,
    };
    Ok(Weighted {
        gradients,
        weight: sum.weight / first,
        first,
    })
}

/// Every gradient's numbers times `factor`, in the order in which the model is visited.
fn taken<M: TrainModule>(model: &M, gradients: Option<Gradients>, factor: f64) -> Result<Pieces> {
    let Some(gradients) = gradients else {
        return Ok(Pieces::new());
    };
    let mut take = Take {
        from: gradients.into(),
        pieces: Pieces::new(),
        error: None,
    };
    model.visit(&mut take);
    if factor != 1.0 {
        // Here and not on the device, where there may be 16 bits only.
        for piece in take.pieces.iter_mut().flatten() {
            piece.scale(factor);
        }
    }
    match take.error {
        Some(error) => Err(error),
        None => Ok(take.pieces),
    }
}

struct Take {
    from: GradientsParams,
    pieces: Pieces,
    error: Option<Error>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Take {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let gradient = self.from.remove::<B::InnerBackend, D>(param.id);
        let piece = gradient.and_then(|gradient| match values(gradient) {
            Ok(values) => Some(values),
            Err(error) => {
                self.error = Some(error);
                None
            }
        });
        self.pieces.push(piece);
    }
}

/// A tensor's numbers: in 64 bits if it has so many, otherwise in 32.
pub(super) fn values<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Result<Values> {
    let unread = |e: String| Error::new(ErrorKind::Backend, "cannot read a tensor").with_source(e);
    let data = tensor.try_into_data().map_err(|e| unread(e.to_string()))?;
    let read = match data.dtype {
        DType::F64 => data.into_vec().map(Values::F64),
        _ => data.convert::<f32>().into_vec().map(Values::F32),
    };
    read.map_err(|e| unread(format!("{e:?}")))
}

/// The tensor of these numbers, if there are as many as its shape has.
pub(super) fn tensor<B: Backend, const D: usize>(
    values: Values,
    shape: [usize; D],
    device: &Device<B>,
    dtype: DType,
) -> Option<Tensor<B, D>> {
    let entries: usize = shape.iter().product();
    let data = match values {
        Values::F32(values) if values.len() == entries => TensorData::new(values, shape),
        Values::F64(values) if values.len() == entries => TensorData::new(values, shape),
        _ => return None,
    };
    Some(Tensor::from_data(
        data.convert_dtype(dtype),
        (device, dtype),
    ))
}

/// The gradients of these numbers, on the devices of the parameters.
fn given<M: TrainModule>(model: &M, pieces: Pieces, squares: &[f64]) -> Result<Gradients> {
    let mut give = Give {
        pieces: pieces.into_iter(),
        to: GradientsParams::new(),
        ids: Vec::new(),
        fits: true,
    };
    model.visit(&mut give);
    if !give.fits || give.pieces.next().is_some() {
        return Err(differ());
    }
    let squares = give.ids.into_iter().zip(squares);
    let squares = squares.filter_map(|(id, sum)| Some((id?, *sum)));
    Ok(Gradients::with_squares(give.to, squares.collect()))
}

struct Give {
    pieces: IntoIter<Option<Values>>,
    to: GradientsParams,
    /// Of each piece, if there is one.
    ids: Vec<Option<ParamId>>,
    fits: bool,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Give {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let Some(piece) = self.pieces.next().flatten() else {
            self.ids.push(None);
            return;
        };
        let parameter = param.val();
        let (device, dtype) = (parameter.device(), parameter.dtype());
        match tensor::<B::InnerBackend, D>(piece, parameter.dims(), &device, dtype) {
            Some(gradient) => self.to.register(param.id, gradient),
            None => self.fits = false,
        }
        self.ids.push(Some(param.id));
    }
}

fn differ() -> Error {
    Error::new(
        ErrorKind::Aborted,
        "ranks differ in their models; all must build the same one",
    )
}

/// Every float parameter's numbers, in the order in which the model is visited.
pub(super) fn parameters<B: Backend, M: Module<B>>(model: &M) -> Result<Pieces> {
    read(model, false)
}

/// The first rank's running statistics, for a model of another rank to take: what is a float parameter
/// but is not trained, in the order in which the model is visited. None where there is nothing to
/// take.
pub(super) fn first_statistics<M: TrainModule>(model: &M, group: &Group) -> Result<Option<Pieces>> {
    // They are brought up to date by this, and by no visit.
    let _ = model.valid();
    if group.is_alone() {
        return Ok(None);
    }
    let own = read(model, true)?;
    if own.iter().all(Option::is_none) {
        return Ok(None);
    }
    let pieces = group.pieces_from_root(own)?;
    Ok((!group.is_root()).then_some(pieces))
}

fn read<B: Backend, M: Module<B>>(model: &M, only_untrained: bool) -> Result<Pieces> {
    let mut read = ReadParameters {
        only_untrained,
        ..ReadParameters::default()
    };
    model.visit(&mut read);
    match read.error {
        Some(error) => Err(error),
        None => Ok(read.pieces),
    }
}

/// A hash of each float parameter's bits, in the order in which the model is visited.
pub(super) fn hashes<B: Backend, M: Module<B>>(model: &M) -> Result<Vec<u64>> {
    let pieces = parameters(model)?;
    let hash = |piece: &Values| xxhash_rust::xxh3::xxh3_64(piece.as_bytes());
    Ok(pieces.iter().flatten().map(hash).collect())
}

#[derive(Default)]
struct ReadParameters {
    only_untrained: bool,
    pieces: Pieces,
    error: Option<Error>,
}

impl<B: Backend> ModuleVisitor<B> for ReadParameters {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let parameter = param.val();
        if self.only_untrained && parameter.is_require_grad() {
            return self.pieces.push(None);
        }
        match values(parameter) {
            Ok(values) => self.pieces.push(Some(values)),
            Err(error) => self.error = Some(error),
        }
    }
}

/// The model with these numbers as its parameters; where there are none, it keeps its own.
pub(super) fn with_parameters<B: Backend, M: Module<B>>(model: M, pieces: Pieces) -> Result<M> {
    let mut write = WriteParameters {
        pieces: pieces.into_iter(),
        fits: true,
    };
    let model = model.map(&mut write);
    match write.fits && write.pieces.next().is_none() {
        true => Ok(model),
        false => Err(differ()),
    }
}

/// The model with the first rank's parameters.
pub(super) fn shared<B: Backend, M: Module<B>>(model: M, group: &Group) -> Result<M> {
    if group.is_root() {
        group.pieces_from_root(parameters(&model)?)?;
        return Ok(model);
    }
    let pieces = group.pieces_from_root(Vec::new())?;
    with_parameters(model, pieces)
}

struct WriteParameters {
    pieces: IntoIter<Option<Values>>,
    fits: bool,
}

impl<B: Backend> ModuleMapper<B> for WriteParameters {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let Some(piece) = self.pieces.next().flatten() else {
            return param;
        };
        let now = param.val();
        match tensor::<B, D>(piece, now.dims(), &now.device(), now.dtype()) {
            None => {
                self.fits = false;
                param
            }
            Some(tensor) => param.map(|old| match old.is_require_grad() {
                true => tensor.require_grad(),
                false => tensor,
            }),
        }
    }
}

/// A copy of a model that shares nothing with it, on this device: Burn's clones share running
/// statistics and the nodes of the graph.
pub(crate) fn replica<M: TrainModule>(model: &M, device: &Device<M::Backend>) -> Result<M> {
    let copy = M::from_inner(model.valid());
    let copy = match model.devices().iter().any(|other| other != device) {
        false => copy,
        // Most backends cannot copy from one device to another but through the host.
        true => copy.map(&mut ThroughHost { device }),
    };
    panics::catch(ErrorKind::Backend, || Ok(copy.fork(device))).map_err(|e| {
        e.context(format!(
            "copying the model to {device:?}; what is not a parameter (a tensor as a plain field) \
             goes there without the host, which not every backend can do: hold it as a `Param`, \
             or train on one device"
        ))
    })
}

struct ThroughHost<'a, D> {
    device: &'a D,
}

impl<B: Backend> ModuleMapper<B> for ThroughHost<'_, B::Device> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|old| {
            let (requires, dtype) = (old.is_require_grad(), old.dtype());
            let new = Tensor::from_data(old.into_data(), (self.device, dtype));
            if requires { new.require_grad() } else { new }
        })
    }

    fn map_int<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, Int>>,
    ) -> Param<Tensor<B, D, Int>> {
        param.map(|old| Tensor::from_data(old.to_data(), (self.device, old.dtype())))
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, Bool>>,
    ) -> Param<Tensor<B, D, Bool>> {
        param.map(|old| Tensor::from_data(old.into_data(), self.device))
    }
}
