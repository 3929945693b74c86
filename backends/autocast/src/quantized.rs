//! Quantized tensors, as they are, and reads of several tensors at once.

use crate::Autocast;
use burn_backend::ops::{
    QTensorOps, TransactionOps, TransactionPrimitive, TransactionPrimitiveData,
};
use burn_backend::quantization::{QuantScheme, QuantizationParametersPrimitive};
use burn_backend::tensor::{BoolTensor, Device, FloatTensor, IntTensor, QuantizedTensor};
use burn_backend::{
    Backend, BoolDType, ExecutionError, FloatDType, IntDType, Scalar, Shape, Slice, TensorData,
    TensorPrimitive,
};

impl<B: Backend> QTensorOps<Self> for Autocast<B> {
    pass_on! {
        q_from_data(data: TensorData, device: (&Device<Self>)) -> Q;
        q_device(tensor: (&QuantizedTensor<Self>)) -> (Device<Self>);
        q_to_device(tensor: Q, device: (&Device<Self>)) -> Q;
        q_reshape(tensor: Q, shape: Shape) -> Q;
        q_detach(tensor: Q) -> Q;
        q_set_require_grad(tensor: Q, require_grad: bool) -> Q;
        q_is_require_grad(tensor: (&QuantizedTensor<Self>)) -> bool;
        q_expand(tensor: Q, shape: Shape) -> Q;
        q_transpose(tensor: Q) -> Q;
        q_swap_dims(tensor: Q, dim1: usize, dim2: usize) -> Q;
        q_permute(tensor: Q, axes: (&[usize])) -> Q;
        q_flip(tensor: Q, axes: (&[usize])) -> Q;
        q_select(tensor: Q, dim: usize, indices: I) -> Q;
        q_slice(tensor: Q, slices: (&[Slice])) -> Q;
        q_gather(dim: usize, tensor: Q, indices: I) -> Q;
        q_repeat_dim(tensor: Q, dim: usize, times: usize) -> Q;
        q_add(lhs: Q, rhs: Q) -> P;
        q_add_scalar(lhs: Q, rhs: Scalar) -> P;
        q_clamp_min(tensor: Q, min: Scalar) -> P;
        q_clamp_max(tensor: Q, max: Scalar) -> P;
        q_clamp(tensor: Q, min: Scalar, max: Scalar) -> P;
        q_sub(lhs: Q, rhs: Q) -> P;
        q_sub_scalar(lhs: Q, rhs: Scalar) -> P;
        q_mul(lhs: Q, rhs: Q) -> P;
        q_mul_scalar(lhs: Q, rhs: Scalar) -> P;
        q_div(lhs: Q, rhs: Q) -> P;
        q_div_scalar(lhs: Q, rhs: Scalar) -> P;
        q_neg(tensor: Q) -> P;
        q_recip(tensor: Q) -> P;
        q_sum(tensor: Q) -> P;
        q_sum_dim(tensor: Q, dim: usize) -> P;
        q_prod(tensor: Q) -> P;
        q_prod_dim(tensor: Q, dim: usize) -> P;
        q_mean(tensor: Q) -> P;
        q_mean_dim(tensor: Q, dim: usize) -> P;
        q_cumsum(tensor: Q, dim: usize) -> P;
        q_cumprod(tensor: Q, dim: usize) -> P;
        q_cummin(tensor: Q, dim: usize) -> P;
        q_cummax(tensor: Q, dim: usize) -> P;
        q_exp(tensor: Q) -> P;
        q_log(tensor: Q) -> P;
        q_log1p(tensor: Q) -> P;
        q_powf(lhs: Q, rhs: Q) -> P;
        q_powi(lhs: Q, rhs: I) -> P;
        q_powi_scalar(lhs: Q, rhs: Scalar) -> P;
        q_powf_scalar(tensor: Q, value: Scalar) -> P;
        q_sqrt(tensor: Q) -> P;
        q_abs(tensor: Q) -> Q;
        q_cos(tensor: Q) -> P;
        q_sin(tensor: Q) -> P;
        q_tan(tensor: Q) -> P;
        q_cosh(tensor: Q) -> P;
        q_sinh(tensor: Q) -> P;
        q_tanh(tensor: Q) -> P;
        q_erf(tensor: Q) -> P;
        q_cat(tensors: (Vec<QuantizedTensor<Self>>), dim: usize) -> Q;
        q_argmax(tensor: Q, dim: usize, out_dtype: IntDType) -> I;
        q_argtopk(tensor: Q, dim: usize, k: usize, out_dtype: IntDType) -> I;
        q_topk(tensor: Q, dim: usize, k: usize) -> Q;
        q_argmin(tensor: Q, dim: usize, out_dtype: IntDType) -> I;
        q_max(tensor: Q) -> Q;
        q_max_dim(tensor: Q, dim: usize) -> Q;
        q_max_dim_with_indices(
            tensor: Q,
            dim: usize,
            out_dtype: IntDType,
        ) -> ((QuantizedTensor<Self>, IntTensor<Self>));
        q_min(tensor: Q) -> Q;
        q_min_dim(tensor: Q, dim: usize) -> Q;
        q_min_dim_with_indices(
            tensor: Q,
            dim: usize,
            out_dtype: IntDType,
        ) -> ((QuantizedTensor<Self>, IntTensor<Self>));
        q_max_abs(tensor: Q) -> Q;
        q_max_abs_dim(tensor: Q, dim: usize) -> Q;
        q_any(tensor: Q, out_dtype: BoolDType) -> Bool;
        q_any_dim(tensor: Q, dim: usize, out_dtype: BoolDType) -> Bool;
        q_all(tensor: Q, out_dtype: BoolDType) -> Bool;
        q_all_dim(tensor: Q, dim: usize, out_dtype: BoolDType) -> Bool;
        q_sort(tensor: Q, dim: usize, descending: bool) -> Q;
        q_sort_with_indices(
            tensor: Q,
            dim: usize,
            descending: bool,
            out_dtype: IntDType,
        ) -> ((QuantizedTensor<Self>, IntTensor<Self>));
        q_argsort(tensor: Q, dim: usize, descending: bool, out_dtype: IntDType) -> I;
    }

    fn quantize(
        tensor: FloatTensor<Self>,
        scheme: &QuantScheme,
        qparams: QuantizationParametersPrimitive<Self>,
    ) -> QuantizedTensor<Self> {
        let scales = qparams.scales.primitive;
        let qparams = QuantizationParametersPrimitive { scales };
        B::quantize(tensor.primitive, scheme, qparams)
    }

    fn quantize_dynamic(tensor: FloatTensor<Self>, scheme: &QuantScheme) -> QuantizedTensor<Self> {
        B::quantize_dynamic(tensor.primitive, scheme)
    }

    fn dequantize(tensor: QuantizedTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        B::dequantize(tensor, dtype).into()
    }

    fn q_matmul(lhs: TensorPrimitive<Self>, rhs: TensorPrimitive<Self>) -> TensorPrimitive<Self> {
        give!(P B::q_matmul(inside(lhs), inside(rhs)))
    }

    fn q_into_data(
        tensor: QuantizedTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        B::q_into_data(tensor)
    }
}

impl<B: Backend> TransactionOps<Self> for Autocast<B> {
    fn tr_execute(
        transaction: TransactionPrimitive<Self>,
    ) -> impl Future<Output = Result<TransactionPrimitiveData, ExecutionError>> + Send {
        let floats = transaction.read_floats.into_iter();
        B::tr_execute(TransactionPrimitive::new(
            floats.map(|tensor| tensor.primitive).collect(),
            transaction.read_qfloats,
            transaction.read_ints,
            transaction.read_bools,
        ))
    }
}

fn inside<B: Backend>(tensor: TensorPrimitive<Autocast<B>>) -> TensorPrimitive<B> {
    match tensor {
        TensorPrimitive::Float(tensor) => TensorPrimitive::Float(tensor.primitive),
        TensorPrimitive::QFloat(tensor) => TensorPrimitive::QFloat(tensor),
    }
}
