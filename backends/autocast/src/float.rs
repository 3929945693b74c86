//! Operations on floats, each under the rule for its operands' formats.

use crate::mode::{self, Rule};
use crate::tensor::cast;
use crate::{Autocast, CastTensor, restore, tag};
use burn_backend::ops::{FloatTensorOps, GridSampleOptions};
use burn_backend::tensor::{BoolTensor, Device, FloatTensor, IndexingUpdateOp, IntTensor};
use burn_backend::{
    Backend, BoolDType, Distribution, ExecutionError, FloatDType, IntDType, Scalar, Shape, Slice,
    TensorData,
};

impl<B: Backend> FloatTensorOps<Self> for Autocast<B> {
    forward! {
        Made =>
        float_random(
            shape: Shape,
            distribution: Distribution,
            device: (&Device<Self>),
            dtype: FloatDType,
        ) -> F;
        float_zeros(shape: Shape, device: (&Device<Self>), dtype: FloatDType) -> F;
        float_ones(shape: Shape, device: (&Device<Self>), dtype: FloatDType) -> F;
        float_full(
            shape: Shape,
            fill_value: Scalar,
            device: (&Device<Self>),
            dtype: FloatDType,
        ) -> F;
        float_empty(shape: Shape, device: (&Device<Self>), dtype: FloatDType) -> F;
    }

    // The same numbers: a parameter remains known as one.
    forward! {
        View =>
        float_to_device(tensor: F, device: (&Device<Self>)) -> F;
        float_transpose(tensor: F) -> F;
        float_swap_dims(tensor: F, dim1: usize, dim2: usize) -> F;
        float_permute(tensor: F, axes: (&[usize])) -> F;
        float_flip(tensor: F, axes: (&[usize])) -> F;
        float_reshape(tensor: F, shape: Shape) -> F;
        float_slice(tensor: F, slices: (&[Slice])) -> F;
        float_expand(tensor: F, shape: Shape) -> F;
    }

    forward! {
        AsIs =>
        float_into_int(tensor: F, out_dtype: IntDType) -> I;
        float_repeat_dim(tensor: F, dim: usize, times: usize) -> F;
        float_add_scalar(lhs: F, rhs: Scalar) -> F;
        float_clamp_min(tensor: F, min: Scalar) -> F;
        float_clamp_max(tensor: F, max: Scalar) -> F;
        float_clamp(tensor: F, min: Scalar, max: Scalar) -> F;
        float_sub_scalar(lhs: F, rhs: Scalar) -> F;
        float_mul_scalar(lhs: F, rhs: Scalar) -> F;
        float_div_scalar(lhs: F, rhs: Scalar) -> F;
        float_remainder_scalar(lhs: F, rhs: Scalar) -> F;
        float_neg(tensor: F) -> F;
        float_gather(dim: usize, tensor: F, indices: I) -> F;
        float_gather_nd(data: F, indices: I) -> F;
        float_select(tensor: F, dim: usize, indices: I) -> F;
        float_sqrt(tensor: F) -> F;
        float_abs(tensor: F) -> F;
        float_cos(tensor: F) -> F;
        float_sin(tensor: F) -> F;
        float_tanh(tensor: F) -> F;
        float_atan(tensor: F) -> F;
        float_round(tensor: F) -> F;
        float_floor(tensor: F) -> F;
        float_ceil(tensor: F) -> F;
        float_trunc(tensor: F) -> F;
        float_erf(tensor: F) -> F;
        float_sign(tensor: F) -> F;
        float_unfold(tensor: F, dim: usize, size: usize, step: usize) -> F;
        float_cummin(tensor: F, dim: usize) -> F;
        float_cummax(tensor: F, dim: usize) -> F;
        float_argmax(tensor: F, dim: usize, out_dtype: IntDType) -> I;
        float_argtopk(tensor: F, dim: usize, k: usize, out_dtype: IntDType) -> I;
        float_topk(tensor: F, dim: usize, k: usize) -> F;
        float_argmin(tensor: F, dim: usize, out_dtype: IntDType) -> I;
        float_max(tensor: F) -> F;
        float_max_dim(tensor: F, dim: usize) -> F;
        float_min(tensor: F) -> F;
        float_min_dim(tensor: F, dim: usize) -> F;
        float_max_abs(tensor: F) -> F;
        float_max_abs_dim(tensor: F, dim: usize) -> F;
        float_any(tensor: F, out_dtype: BoolDType) -> Bool;
        float_any_dim(tensor: F, dim: usize, out_dtype: BoolDType) -> Bool;
        float_all(tensor: F, out_dtype: BoolDType) -> Bool;
        float_all_dim(tensor: F, dim: usize, out_dtype: BoolDType) -> Bool;
        float_sort(tensor: F, dim: usize, descending: bool) -> F;
        float_argsort(tensor: F, dim: usize, descending: bool, out_dtype: IntDType) -> I;
        float_equal_elem(lhs: F, rhs: Scalar, out_dtype: BoolDType) -> Bool;
        float_not_equal_elem(lhs: F, rhs: Scalar, out_dtype: BoolDType) -> Bool;
        float_greater_elem(lhs: F, rhs: Scalar, out_dtype: BoolDType) -> Bool;
        float_greater_equal_elem(lhs: F, rhs: Scalar, out_dtype: BoolDType) -> Bool;
        float_lower_elem(lhs: F, rhs: Scalar, out_dtype: BoolDType) -> Bool;
        float_lower_equal_elem(lhs: F, rhs: Scalar, out_dtype: BoolDType) -> Bool;
        float_is_nan(tensor: F, out_dtype: BoolDType) -> Bool;
        float_is_inf(tensor: F, out_dtype: BoolDType) -> Bool;
    }

    // Fills with infinities on purpose.
    forward! {
        Masks =>
        float_mask_fill(tensor: F, mask: Bool, value: Scalar) -> F;
    }

    forward! {
        Join =>
        float_add(lhs: F, rhs: F) -> F;
        float_sub(lhs: F, rhs: F) -> F;
        float_mul(lhs: F, rhs: F) -> F;
        float_div(lhs: F, rhs: F) -> F;
        float_remainder(lhs: F, rhs: F) -> F;
        float_cross(lhs: F, rhs: F, dim: usize) -> F;
        float_slice_assign(tensor: F, slices: (&[Slice]), value: F) -> F;
        float_mask_where(tensor: F, mask: Bool, value: F) -> F;
        float_equal(lhs: F, rhs: F, out_dtype: BoolDType) -> Bool;
        float_not_equal(lhs: F, rhs: F, out_dtype: BoolDType) -> Bool;
        float_greater(lhs: F, rhs: F, out_dtype: BoolDType) -> Bool;
        float_greater_equal(lhs: F, rhs: F, out_dtype: BoolDType) -> Bool;
        float_lower(lhs: F, rhs: F, out_dtype: BoolDType) -> Bool;
        float_lower_equal(lhs: F, rhs: F, out_dtype: BoolDType) -> Bool;
        float_atan2(lhs: F, rhs: F) -> F;
        float_grid_sample_2d(tensor: F, grid: F, options: GridSampleOptions) -> F;
    }

    // Sums of many numbers.
    forward! {
        Widest =>
        float_scatter_nd(data: F, indices: I, values: F, reduction: IndexingUpdateOp) -> F;
        float_scatter_add(dim: usize, tensor: F, indices: I, value: F) -> F;
        float_select_add(tensor: F, dim: usize, indices: I, value: F) -> F;
    }

    forward! {
        Narrow =>
        float_matmul(lhs: F, rhs: F) -> F;
    }

    // What grows fast, is exact near one point alone, or sums many numbers.
    forward! {
        Wide =>
        float_sum(tensor: F) -> F;
        float_sum_dim(tensor: F, dim: usize) -> F;
        float_prod(tensor: F) -> F;
        float_prod_dim(tensor: F, dim: usize) -> F;
        float_mean(tensor: F) -> F;
        float_mean_dim(tensor: F, dim: usize) -> F;
        float_cumsum(tensor: F, dim: usize) -> F;
        float_cumprod(tensor: F, dim: usize) -> F;
        float_exp(tensor: F) -> F;
        float_log(tensor: F) -> F;
        float_log1p(tensor: F) -> F;
        float_recip(tensor: F) -> F;
        float_powf(lhs: F, rhs: F) -> F;
        float_powi(lhs: F, rhs: I) -> F;
        float_powi_scalar(lhs: F, rhs: Scalar) -> F;
        float_powi_scalar_impl(lhs: F, rhs: Scalar) -> F;
        float_powf_scalar(tensor: F, value: Scalar) -> F;
        float_powf_scalar_impl(tensor: F, value: Scalar) -> F;
        float_tan(tensor: F) -> F;
        float_cosh(tensor: F) -> F;
        float_sinh(tensor: F) -> F;
        float_acos(tensor: F) -> F;
        float_acosh(tensor: F) -> F;
        float_asin(tensor: F) -> F;
        float_asinh(tensor: F) -> F;
        float_atanh(tensor: F) -> F;
    }

    // `cat` takes a list; the others give indices beside numbers, or look at the tag.

    fn float_cat(tensors: Vec<FloatTensor<Self>>, dim: usize) -> FloatTensor<Self> {
        let seen: Vec<_> = tensors.iter().map(|tensor| Some(tensor.seen())).collect();
        let plan = mode::plan(Rule::Join, "cat", &seen);
        let tensors = tensors.into_iter();
        let tensors = tensors.map(|tensor| cast::<B>(tensor, plan.operands));
        B::float_cat(tensors.collect(), dim).into()
    }

    fn float_max_dim_with_indices(
        tensor: FloatTensor<Self>,
        dim: usize,
        indices_dtype: IntDType,
    ) -> (FloatTensor<Self>, IntTensor<Self>) {
        let (values, indices) = B::float_max_dim_with_indices(tensor.primitive, dim, indices_dtype);
        (values.into(), indices)
    }

    fn float_min_dim_with_indices(
        tensor: FloatTensor<Self>,
        dim: usize,
        indices_dtype: IntDType,
    ) -> (FloatTensor<Self>, IntTensor<Self>) {
        let (values, indices) = B::float_min_dim_with_indices(tensor.primitive, dim, indices_dtype);
        (values.into(), indices)
    }

    fn float_sort_with_indices(
        tensor: FloatTensor<Self>,
        dim: usize,
        descending: bool,
        indices_dtype: IntDType,
    ) -> (FloatTensor<Self>, IntTensor<Self>) {
        let (values, indices) =
            B::float_sort_with_indices(tensor.primitive, dim, descending, indices_dtype);
        (values.into(), indices)
    }

    fn float_from_data(data: TensorData, device: &Device<Self>) -> FloatTensor<Self> {
        B::float_from_data(restore::data(data), device).into()
    }

    fn float_cast(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        CastTensor {
            primitive: B::float_cast(tensor.primitive, dtype),
            tag: tensor.tag,
        }
    }

    fn float_detach(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        CastTensor {
            primitive: B::float_detach(tensor.primitive),
            tag: tag::next().or(tensor.tag),
        }
    }

    fn float_device(tensor: &FloatTensor<Self>) -> Device<Self> {
        B::float_device(&tensor.primitive)
    }

    fn float_into_data(
        tensor: FloatTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        B::float_into_data(tensor.primitive)
    }
}
