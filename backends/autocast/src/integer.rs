//! Integers and Booleans, as they are.

use crate::Autocast;
use burn_backend::ops::{BoolTensorOps, IntTensorOps};
use burn_backend::tensor::{BoolTensor, Device, FloatTensor, IndexingUpdateOp, IntTensor};
use burn_backend::{
    Backend, BoolDType, Distribution, ExecutionError, FloatDType, IntDType, Scalar, Shape, Slice,
    TensorData,
};
use std::ops::Range;

impl<B: Backend> IntTensorOps<Self> for Autocast<B> {
    pass_on! {
        int_empty(shape: Shape, device: (&Device<Self>), dtype: IntDType) -> I;
        int_from_data(data: TensorData, device: (&Device<Self>)) -> I;
        int_device(tensor: (&IntTensor<Self>)) -> (Device<Self>);
        int_to_device(tensor: I, device: (&Device<Self>)) -> I;
        int_reshape(tensor: I, shape: Shape) -> I;
        int_slice(tensor: I, slices: (&[Slice])) -> I;
        int_slice_assign(tensor: I, slices: (&[Slice]), value: I) -> I;
        int_mask_where(tensor: I, mask: Bool, value: I) -> I;
        int_mask_fill(tensor: I, mask: Bool, value: Scalar) -> I;
        int_gather(dim: usize, tensor: I, indices: I) -> I;
        int_scatter_add(dim: usize, tensor: I, indices: I, value: I) -> I;
        int_scatter_nd(data: I, indices: I, values: I, reduction: IndexingUpdateOp) -> I;
        int_gather_nd(data: I, indices: I) -> I;
        int_select(tensor: I, dim: usize, indices: I) -> I;
        int_select_add(tensor: I, dim: usize, indices: I, value: I) -> I;
        int_repeat_dim(tensor: I, dim: usize, times: usize) -> I;
        int_cat(tensors: (Vec<IntTensor<Self>>), dim: usize) -> I;
        int_equal(lhs: I, rhs: I, out_dtype: BoolDType) -> Bool;
        int_not_equal(lhs: I, rhs: I, out_dtype: BoolDType) -> Bool;
        int_equal_elem(lhs: I, rhs: Scalar, out_dtype: BoolDType) -> Bool;
        int_not_equal_elem(lhs: I, rhs: Scalar, out_dtype: BoolDType) -> Bool;
        int_greater(lhs: I, rhs: I, out_dtype: BoolDType) -> Bool;
        int_greater_elem(lhs: I, rhs: Scalar, out_dtype: BoolDType) -> Bool;
        int_greater_equal(lhs: I, rhs: I, out_dtype: BoolDType) -> Bool;
        int_greater_equal_elem(lhs: I, rhs: Scalar, out_dtype: BoolDType) -> Bool;
        int_lower(lhs: I, rhs: I, out_dtype: BoolDType) -> Bool;
        int_lower_elem(lhs: I, rhs: Scalar, out_dtype: BoolDType) -> Bool;
        int_lower_equal(lhs: I, rhs: I, out_dtype: BoolDType) -> Bool;
        int_lower_equal_elem(lhs: I, rhs: Scalar, out_dtype: BoolDType) -> Bool;
        int_add(lhs: I, rhs: I) -> I;
        int_add_scalar(lhs: I, rhs: Scalar) -> I;
        int_powi(lhs: I, rhs: I) -> I;
        int_powi_scalar(lhs: I, rhs: Scalar) -> I;
        int_powi_scalar_impl(lhs: I, rhs: Scalar) -> I;
        int_clamp_min(tensor: I, min: Scalar) -> I;
        int_clamp_max(tensor: I, max: Scalar) -> I;
        int_clamp(tensor: I, min: Scalar, max: Scalar) -> I;
        int_sub(lhs: I, rhs: I) -> I;
        int_sub_scalar(lhs: I, rhs: Scalar) -> I;
        int_mul(lhs: I, rhs: I) -> I;
        int_mul_scalar(lhs: I, rhs: Scalar) -> I;
        int_div(lhs: I, rhs: I) -> I;
        int_div_scalar(lhs: I, rhs: Scalar) -> I;
        int_remainder(lhs: I, rhs: I) -> I;
        int_remainder_scalar(lhs: I, rhs: Scalar) -> I;
        int_matmul(lhs: I, rhs: I) -> I;
        int_neg(tensor: I) -> I;
        int_zeros(shape: Shape, device: (&Device<Self>), dtype: IntDType) -> I;
        int_ones(shape: Shape, device: (&Device<Self>), dtype: IntDType) -> I;
        int_full(shape: Shape, fill_value: Scalar, device: (&Device<Self>), dtype: IntDType) -> I;
        int_sum(tensor: I) -> I;
        int_sum_dim(tensor: I, dim: usize) -> I;
        int_prod(tensor: I) -> I;
        int_prod_dim(tensor: I, dim: usize) -> I;
        int_mean(tensor: I) -> I;
        int_mean_dim(tensor: I, dim: usize) -> I;
        int_cumsum(tensor: I, dim: usize) -> I;
        int_cumprod(tensor: I, dim: usize) -> I;
        int_cummin(tensor: I, dim: usize) -> I;
        int_cummax(tensor: I, dim: usize) -> I;
        int_argmax(tensor: I, dim: usize) -> I;
        int_argtopk(tensor: I, dim: usize, k: usize) -> I;
        int_topk(tensor: I, dim: usize, k: usize) -> I;
        int_argmin(tensor: I, dim: usize) -> I;
        int_max(tensor: I) -> I;
        int_max_dim(tensor: I, dim: usize) -> I;
        int_max_dim_with_indices(tensor: I, dim: usize) -> ((IntTensor<Self>, IntTensor<Self>));
        int_max_abs(tensor: I) -> I;
        int_max_abs_dim(tensor: I, dim: usize) -> I;
        int_min(tensor: I) -> I;
        int_min_dim(tensor: I, dim: usize) -> I;
        int_min_dim_with_indices(tensor: I, dim: usize) -> ((IntTensor<Self>, IntTensor<Self>));
        int_abs(tensor: I) -> I;
        int_transpose(tensor: I) -> I;
        int_swap_dims(tensor: I, dim1: usize, dim2: usize) -> I;
        int_permute(tensor: I, axes: (&[usize])) -> I;
        int_flip(tensor: I, axes: (&[usize])) -> I;
        int_random(
            shape: Shape,
            distribution: Distribution,
            device: (&Device<Self>),
            dtype: IntDType,
        ) -> I;
        int_arange_step(
            range: (Range<i64>),
            step: usize,
            device: (&Device<Self>),
            dtype: IntDType,
        ) -> I;
        int_arange(range: (Range<i64>), device: (&Device<Self>), dtype: IntDType) -> I;
        int_any(tensor: I, out_dtype: BoolDType) -> Bool;
        int_any_dim(tensor: I, dim: usize, out_dtype: BoolDType) -> Bool;
        int_all(tensor: I, out_dtype: BoolDType) -> Bool;
        int_all_dim(tensor: I, dim: usize, out_dtype: BoolDType) -> Bool;
        int_sign(tensor: I) -> I;
        int_expand(tensor: I, shape: Shape) -> I;
        int_sort(tensor: I, dim: usize, descending: bool) -> I;
        int_sort_with_indices(
            tensor: I,
            dim: usize,
            descending: bool,
        ) -> ((IntTensor<Self>, IntTensor<Self>));
        int_argsort(tensor: I, dim: usize, descending: bool) -> I;
        bitwise_and(lhs: I, rhs: I) -> I;
        bitwise_and_scalar(lhs: I, rhs: Scalar) -> I;
        bitwise_or(lhs: I, rhs: I) -> I;
        bitwise_or_scalar(lhs: I, rhs: Scalar) -> I;
        bitwise_xor(lhs: I, rhs: I) -> I;
        bitwise_xor_scalar(lhs: I, rhs: Scalar) -> I;
        bitwise_not(tensor: I) -> I;
        bitwise_left_shift(lhs: I, rhs: I) -> I;
        bitwise_left_shift_scalar(lhs: I, rhs: Scalar) -> I;
        bitwise_right_shift(lhs: I, rhs: I) -> I;
        bitwise_right_shift_scalar(lhs: I, rhs: Scalar) -> I;
        int_cast(tensor: I, dtype: IntDType) -> I;
        int_unfold(tensor: I, dim: usize, size: usize, step: usize) -> I;
    }

    fn int_into_float(tensor: IntTensor<Self>, out_dtype: FloatDType) -> FloatTensor<Self> {
        B::int_into_float(tensor, out_dtype).into()
    }

    fn int_into_data(
        tensor: IntTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        B::int_into_data(tensor)
    }
}

impl<B: Backend> BoolTensorOps<Self> for Autocast<B> {
    pass_on! {
        bool_empty(shape: Shape, device: (&Device<Self>), dtype: BoolDType) -> Bool;
        bool_zeros(shape: Shape, device: (&Device<Self>), dtype: BoolDType) -> Bool;
        bool_ones(shape: Shape, device: (&Device<Self>), dtype: BoolDType) -> Bool;
        bool_from_data(data: TensorData, device: (&Device<Self>)) -> Bool;
        bool_into_int(tensor: Bool, out_dtype: IntDType) -> I;
        bool_device(tensor: (&BoolTensor<Self>)) -> (Device<Self>);
        bool_to_device(tensor: Bool, device: (&Device<Self>)) -> Bool;
        bool_reshape(tensor: Bool, shape: Shape) -> Bool;
        bool_slice(tensor: Bool, slices: (&[Slice])) -> Bool;
        bool_slice_assign(tensor: Bool, slices: (&[Slice]), value: Bool) -> Bool;
        bool_mask_where(tensor: Bool, mask: Bool, value: Bool) -> Bool;
        bool_mask_fill(tensor: Bool, mask: Bool, value: Scalar) -> Bool;
        bool_gather(dim: usize, tensor: Bool, indices: I) -> Bool;
        bool_scatter_or(dim: usize, tensor: Bool, indices: I, value: Bool) -> Bool;
        bool_select(tensor: Bool, dim: usize, indices: I) -> Bool;
        bool_select_or(tensor: Bool, dim: usize, indices: I, value: Bool) -> Bool;
        bool_repeat_dim(tensor: Bool, dim: usize, times: usize) -> Bool;
        bool_cat(tensors: (Vec<BoolTensor<Self>>), dim: usize) -> Bool;
        bool_equal(lhs: Bool, rhs: Bool) -> Bool;
        bool_not_equal(lhs: Bool, rhs: Bool) -> Bool;
        bool_equal_elem(lhs: Bool, rhs: Scalar) -> Bool;
        bool_not_equal_elem(lhs: Bool, rhs: Scalar) -> Bool;
        bool_not(tensor: Bool) -> Bool;
        bool_and(lhs: Bool, rhs: Bool) -> Bool;
        bool_or(lhs: Bool, rhs: Bool) -> Bool;
        bool_xor(lhs: Bool, rhs: Bool) -> Bool;
        bool_transpose(tensor: Bool) -> Bool;
        bool_swap_dims(tensor: Bool, dim1: usize, dim2: usize) -> Bool;
        bool_permute(tensor: Bool, axes: (&[usize])) -> Bool;
        bool_flip(tensor: Bool, axes: (&[usize])) -> Bool;
        bool_any(tensor: Bool) -> Bool;
        bool_any_dim(tensor: Bool, dim: usize) -> Bool;
        bool_all(tensor: Bool) -> Bool;
        bool_all_dim(tensor: Bool, dim: usize) -> Bool;
        bool_expand(tensor: Bool, shape: Shape) -> Bool;
        bool_unfold(tensor: Bool, dim: usize, size: usize, step: usize) -> Bool;
    }

    fn bool_into_float(tensor: BoolTensor<Self>, out_dtype: FloatDType) -> FloatTensor<Self> {
        B::bool_into_float(tensor, out_dtype).into()
    }

    fn bool_into_data(
        tensor: BoolTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        B::bool_into_data(tensor)
    }

    fn bool_argwhere(
        tensor: BoolTensor<Self>,
        out_dtype: IntDType,
    ) -> impl Future<Output = IntTensor<Self>> + 'static + Send {
        B::bool_argwhere(tensor, out_dtype)
    }
}
