//! Layers whose result does not depend on how many devices a batch is spread over.
//!
//! Burn has layers of the same names; two of them give something else on several devices than on
//! one. Each device holds a copy of the model and computes a part of the batch, so Burn's
//! `BatchNorm` normalizes each part by itself, and Burn's `Dropout` draws from one generator for
//! the whole process, whose numbers depend on which device comes first. The layers here take the
//! place of Burn's: same settings, same records.
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::{Tensor, backend::Backend};
//! use firebox::nn::{SyncBatchNorm, SyncBatchNormConfig, Dropout, DropoutConfig};
//!
//! #[derive(Module, Debug)]
//! struct Block<B: Backend> {
//!     linear: Linear<B>,
//!     norm: SyncBatchNorm<B>,
//!     dropout: Dropout,
//! }
//!
//! impl<B: Backend> Block<B> {
//!     fn new(device: &B::Device) -> Self {
//!         Self {
//!             linear: LinearConfig::new(8, 8).init(device),
//!             norm: SyncBatchNormConfig::new(8).init(device),
//!             dropout: DropoutConfig::new(0.1).init(),
//!         }
//!     }
//!     fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
//!         self.dropout.forward(self.norm.forward(self.linear.forward(x)))
//!     }
//! }
//! # let device = Default::default();
//! # let y = Block::<firebox::testing::Cpu>::new(&device).forward(Tensor::ones([4, 8], &device));
//! # assert_eq!(y.dims(), [4, 8]);
//! ```

mod batch_norm;
pub(crate) mod context;
mod dropout;
mod sync;

pub use batch_norm::{SyncBatchNorm, SyncBatchNormConfig, SyncBatchNormRecord};
pub use dropout::{Dropout, DropoutConfig};
