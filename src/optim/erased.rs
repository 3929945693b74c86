//! Any of Burn's optimizers behind one small trait. Their types end here.

use crate::error::{Error, ErrorKind, Result};
use crate::module::TrainModule;
use crate::panics;
use burn::optim::{GradientsParams, Optimizer};
use burn::record::{DoublePrecisionSettings, FullPrecisionSettings, PrecisionSettings, Record};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Device, FloatDType, TensorData};
use ciborium::Value;
use firebox_autocast::restoring;

/// An optimizer of any type for the module `M`.
pub(crate) trait ErasedOptimizer<M: TrainModule>: Send {
    fn step(&mut self, lr: f64, model: M, gradients: GradientsParams) -> Result<M>;

    /// The same optimizer, for another replica.
    fn boxed_clone(&self) -> Box<dyn ErasedOptimizer<M>>;

    /// The state (moments) as it is now, to be encoded when there is time. `format` is that of the
    /// parameters.
    fn save(&self, format: FloatDType) -> SavedState;

    /// Takes back what [`save`](Self::save) gave.
    fn load(
        &mut self,
        state: &Value,
        device: &Device<M::Backend>,
        format: FloatDType,
    ) -> Result<()>;
}

/// An optimizer's state, in full precision, with parameters by their id. It holds the tensors that
/// the optimizer had; the optimizer's next step leaves them as they are.
pub(crate) type SavedState = Box<dyn FnOnce() -> Result<Value> + Send>;

impl<M: TrainModule, O: Optimizer<M, M::Backend> + 'static> ErasedOptimizer<M> for O {
    fn step(&mut self, lr: f64, model: M, gradients: GradientsParams) -> Result<M> {
        panics::catch(ErrorKind::User, || {
            Ok(Optimizer::step(self, lr, model, gradients))
        })
    }

    fn boxed_clone(&self) -> Box<dyn ErasedOptimizer<M>> {
        Box::new(self.clone())
    }

    fn save(&self, format: FloatDType) -> SavedState {
        let record = self.to_record();
        Box::new(move || {
            panics::catch(ErrorKind::Backend, || match format == FloatDType::F64 {
                true => encode::<M::Backend, _, DoublePrecisionSettings>(record),
                false => encode::<M::Backend, _, FullPrecisionSettings>(record),
            })
        })
    }

    fn load(
        &mut self,
        state: &Value,
        device: &Device<M::Backend>,
        format: FloatDType,
    ) -> Result<()> {
        // Burn panics where a state is not that of this kind of optimizer.
        let load = || {
            panics::catch(ErrorKind::Config, || {
                let record = match format == FloatDType::F64 {
                    true => decode::<M::Backend, _, DoublePrecisionSettings>(state, device)?,
                    false => decode::<M::Backend, _, FullPrecisionSettings>(state, device)?,
                };
                Ok(self.clone().load_record(record))
            })
        };
        *self = match format {
            FloatDType::F32 => load()?,
            // Burn reads records back in 32 bits.
            format => restoring(format, wide_tensors(state), load)?,
        };
        Ok(())
    }
}

/// The tensors of a state that have more than 32 bits.
fn wide_tensors(state: &Value) -> Vec<TensorData> {
    let inside: Vec<&Value> = match state {
        Value::Map(entries) => entries.iter().map(|(_, value)| value).collect(),
        Value::Array(items) => items.iter().collect(),
        _ => return Vec::new(),
    };
    match state.deserialized::<TensorData>() {
        Ok(data) if data.dtype == DType::F64 => vec![data],
        Ok(_) => Vec::new(),
        Err(_) => inside.into_iter().flat_map(wide_tensors).collect(),
    }
}

fn encode<B: Backend, R: Record<B>, S: PrecisionSettings>(record: R) -> Result<Value> {
    Value::serialized(&record.into_item::<S>()).map_err(|e| {
        Error::new(ErrorKind::Io, "cannot encode the optimizer's state").with_source(e)
    })
}

fn decode<B: Backend, R: Record<B>, S: PrecisionSettings>(
    state: &Value,
    device: &B::Device,
) -> Result<R> {
    let item = state.deserialized::<R::Item<S>>().map_err(|e| {
        Error::config("the saved state is that of another kind of optimizer").with_source(e)
    })?;
    Ok(R::from_item(item, device))
}
