//! A float tensor that knows which parameter it is.

use crate::tag::Tag;
use burn_backend::{Backend, DType, FloatDType, Shape, TensorMetadata};
use std::sync::Arc;

/// A float tensor of the backend inside, and the [`Tag`] of the parameter that it is, if it is one.
#[derive(Debug, Clone)]
pub struct CastTensor<P> {
    pub(crate) primitive: P,
    pub(crate) tag: Option<Arc<Tag>>,
}

impl<P> From<P> for CastTensor<P> {
    fn from(primitive: P) -> Self {
        Self {
            primitive,
            tag: None,
        }
    }
}

impl<P: TensorMetadata> TensorMetadata for CastTensor<P> {
    fn dtype(&self) -> DType {
        self.primitive.dtype()
    }

    fn shape(&self) -> Shape {
        self.primitive.shape()
    }

    fn rank(&self) -> usize {
        self.primitive.rank()
    }
}

impl<P: TensorMetadata> CastTensor<P> {
    /// What the choice of a format depends on.
    pub(crate) fn seen(&self) -> Seen<'_> {
        Seen {
            dtype: self.primitive.dtype(),
            tag: self.tag.as_ref(),
        }
    }
}

/// An operand, as the choice of a format sees it.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) dtype: DType,
    pub(crate) tag: Option<&'a Arc<Tag>>,
}

/// The tensor in this format; as it is where that is `None`.
pub(crate) fn cast<B: Backend>(
    tensor: CastTensor<B::FloatTensorPrimitive>,
    to: Option<FloatDType>,
) -> B::FloatTensorPrimitive {
    cast_primitive::<B>(tensor.primitive, to)
}

pub(crate) fn cast_primitive<B: Backend>(
    primitive: B::FloatTensorPrimitive,
    to: Option<FloatDType>,
) -> B::FloatTensorPrimitive {
    match to {
        Some(to) if primitive.dtype() != DType::from(to) => B::float_cast(primitive, to),
        _ => primitive,
    }
}
