//! A Burn backend around another one that chooses the number format of every operation, as
//! PyTorch's autocast does.
//!
//! Burn's operations expect all their operands in one format, and some backends do not check it:
//! they compute garbage. [`Autocast`] brings operands to one format first, and while a [`Mode`] is
//! on, to that which suits the operation:
//!
//! | operation | in [`Mode::Mixed`] | in [`Mode::Whole`] |
//! |---|---|---|
//! | matrix products, convolutions | 16 bits | the run's format |
//! | sums, means, exp, log, powers, softmax, layer norm | 32 bits, and so is the result | at least 32 bits, the result in the run's format |
//! | pooling, GELU | 32 bits, the result in the operand's format | as above |
//! | element by element, of two formats | a parameter takes the other's format, else the wider | the run's format |
//! | everything else | the operand's format | the operand's format |
//!
//! Autodiff goes around it, so that the same holds in the backward pass: `Autodiff<Autocast<Flex>>`.
//! Parameters stay in the format that they have; where a product wants 16 bits, it takes a copy.
//!
//! ```
//! use burn::tensor::{DType, FloatDType, Tensor};
//! use burn_flex::Flex;
//! use firebox_autocast::{Autocast, Mode, within};
//!
//! let device = Default::default();
//! let x = Tensor::<Autocast<Flex>, 2>::ones([2, 2], &device);
//! let (product, sum) = within(Mode::Mixed(FloatDType::BF16), || {
//!     let product = x.clone().matmul(x);
//!     (product.clone(), product.sum())
//! });
//! assert_eq!((product.dtype(), sum.dtype()), (DType::BF16, DType::F32));
//! ```

#[macro_use]
mod forward;
mod activation;
mod float;
mod integer;
mod mode;
mod module;
mod quantized;
mod restore;
mod tag;
mod tensor;
mod watch;

pub use mode::{Mode, within};
pub use restore::restoring;
pub use tag::{Tag, mark};
pub use tensor::CastTensor;
pub use watch::{Finding, Pass, What, in_pass, watch};

use burn_backend::{
    Backend, BackendTypes, DType, DTypeUsage, DTypeUsageSet, ExecutionError, FloatDType, TensorData,
};
use std::cell::Cell;
use std::marker::PhantomData;

/// The backend `B`, with the format of each operation's numbers chosen; see the [crate](self).
#[derive(Debug, Clone, Copy, Default)]
pub struct Autocast<B>(PhantomData<B>);

impl<B: Backend> BackendTypes for Autocast<B> {
    type Device = B::Device;
    type FloatTensorPrimitive = CastTensor<B::FloatTensorPrimitive>;
    type FloatElem = B::FloatElem;
    type IntTensorPrimitive = B::IntTensorPrimitive;
    type IntElem = B::IntElem;
    type BoolTensorPrimitive = B::BoolTensorPrimitive;
    type BoolElem = B::BoolElem;
    type QuantizedTensorPrimitive = B::QuantizedTensorPrimitive;
}

impl<B: Backend> Backend for Autocast<B> {
    fn ad_enabled(device: &Self::Device) -> bool {
        B::ad_enabled(device)
    }

    fn memory_persistent_allocations<
        Output: Send,
        Input: Send,
        Func: Fn(Input) -> Output + Send,
    >(
        device: &Self::Device,
        input: Input,
        func: Func,
    ) -> Output {
        B::memory_persistent_allocations(device, input, func)
    }

    fn memory_cleanup(device: &Self::Device) {
        B::memory_cleanup(device);
    }

    fn name(device: &Self::Device) -> String {
        NAMED.set(true);
        B::name(device)
    }

    fn seed(device: &Self::Device, seed: u64) {
        B::seed(device, seed);
    }

    fn sync(device: &Self::Device) -> Result<(), ExecutionError> {
        B::sync(device)
    }

    fn staging<'a, Iter>(data: Iter, device: &Self::Device)
    where
        Iter: Iterator<Item = &'a mut TensorData>,
    {
        B::staging(data, device);
    }

    fn supports_dtype(device: &Self::Device, dtype: DType) -> bool {
        B::supports_dtype(device, dtype)
    }

    fn dtype_usage(device: &Self::Device, dtype: DType) -> DTypeUsageSet {
        B::dtype_usage(device, dtype)
    }

    fn device_count(type_id: u16) -> usize {
        B::device_count(type_id)
    }
}

thread_local! {
    static NAMED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a backend has [`Autocast`] somewhere inside, below autodiff for example.
///
/// ```
/// use burn::backend::Autodiff;
/// use burn_flex::Flex;
/// use firebox_autocast::{Autocast, is_inside};
///
/// let device = Default::default();
/// assert!(is_inside::<Autodiff<Autocast<Flex>>>(&device));
/// assert!(!is_inside::<Autodiff<Flex>>(&device));
/// ```
pub fn is_inside<B: Backend>(device: &B::Device) -> bool {
    NAMED.set(false);
    // A backend around another asks that one for its name.
    let _ = B::name(device);
    NAMED.get()
}

/// Whether the device has fast paths of its own (tensor cores) for a format.
pub fn is_accelerated<B: Backend>(device: &B::Device, format: FloatDType) -> bool {
    let usage = B::dtype_usage(device, format.into());
    usage.contains(DTypeUsage::Accelerated) && usage.is_superset(DTypeUsage::general())
}
