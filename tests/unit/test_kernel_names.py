"""Names of kernels as they are shown: the kernel and what it computes, without types and namespaces."""

import pytest

from perfsuite.kernel_names import short_name, totals

MUL = "at::native::AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"
LAMBDA = "(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda(float)#1}"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("cublasLtMatmul", "cublasLtMatmul"),
        ("cudnn convolution forward", "cudnn convolution forward"),
        ("triton_poi_fused_gelu_0", "triton_poi_fused_gelu_0"),
        (
            f"void at::native::vectorized_elementwise_kernel<4, {MUL}, std::array<char*, 2ul> >"
            f"(int, {MUL}, std::array<char*, 2ul>)",
            "vectorized_elementwise_kernel<MulFunctor>",
        ),
        (
            "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
            f"at::native::tanh_kernel_cuda{LAMBDA}>(at::Ten",
            "elementwise_kernel<tanh_kernel_cuda>",
        ),
        (
            "void (anonymous namespace)::elementwise_kernel_with_index<int, "
            f"at::native::arange_cuda_out{LAMBDA}>(int)",
            "elementwise_kernel_with_index<arange_cuda_out>",
        ),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<"
            "float, at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::"
            "{lambda(float, float)#1}>",
            "reduce_kernel<sum_functor>",
        ),
        ("void at::native::(anonymous namespace)::CatCopy<at::OpaqueType<4u>, 3>(long)", "CatCopy"),
        ("fmha_cutlassF_f32_sm80(AttentionKernel<float>::Params)", "fmha_cutlassF_f32_sm80"),
        ("my_kernel(float*)", "my_kernel"),
        (f"triton_{'x' * 200}", f"triton_{'x' * 82}…"),
        ("", ""),
    ],
)
def test_a_name_is_short(name, short):
    """As torch 2.12 names its kernels; names that are cut in the middle too."""
    assert short == short_name(name)


def test_instances_of_a_template_are_one_kernel():
    """Their launches are added up, over all lines."""
    wide, narrow = (f"void k<{width}, at::MulFunctor<float> >(int)" for width in (4, 2))
    assert {"gemm": 3.0, "k<MulFunctor>": 4.0} == totals(
        {wide: {"a": 1.0, "b": 2.0}, "gemm": {"a": 3.0}, narrow: {"b": 1.0}}
    )


def test_means_of_steps_add_up_to_a_whole_number():
    """Ten tenths are one launch a step, not 0.9999999999999999."""
    assert {"k": 1.0} == totals({"k": {str(line): 0.1 for line in range(10)}})
