//! Any of Burn's optimizers behind one small trait. Their types end here.

use crate::error::{Error, ErrorKind, Result};
use crate::module::TrainModule;
use burn::optim::{GradientsParams, Optimizer};
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};

/// An optimizer of any type for the module `M`.
pub(crate) trait ErasedOptimizer<M: TrainModule>: Send {
    fn step(&mut self, lr: f64, model: M, gradients: GradientsParams) -> M;

    /// The state (moments), in full precision.
    fn save(&self) -> Result<Vec<u8>>;
}

type StateRecorder = BinBytesRecorder<FullPrecisionSettings, Vec<u8>>;

impl<M: TrainModule, O: Optimizer<M, M::Backend>> ErasedOptimizer<M> for O {
    fn step(&mut self, lr: f64, model: M, gradients: GradientsParams) -> M {
        Optimizer::step(self, lr, model, gradients)
    }

    fn save(&self) -> Result<Vec<u8>> {
        Recorder::<M::Backend>::record(&StateRecorder::default(), self.to_record(), ()).map_err(
            |e| Error::new(ErrorKind::Io, "cannot encode the optimizer's state").with_source(e),
        )
    }
}
