//! 3×3 convolutions of `[batch, height, width, channels]`.

use super::super::operation::{Computed, Operation};
use super::super::runner::Runner;
use super::{compute, primitive};
use burn::tensor::{Shape, Tensor, TensorMetadata, backend::Backend, ops::FloatTensor};
use downshift_kernels::convolution::{self, Picture, TAPS};

fn picture(shape: &Shape, stride: usize) -> Picture {
    let [batch, height, width, channels] = shape.dims();
    Picture { batch, size: [height, width], channels, stride }
}

#[derive(Debug, Clone)]
struct Depthwise {
    stride: usize,
}

/// Filters each channel by its own filter: `[9, channels]`, the taps row by row.
pub fn depthwise<B: Backend>(x: &Tensor<B, 4>, filter: &Tensor<B, 2>, stride: usize) -> Option<Tensor<B, 4>> {
    compute(&Depthwise { stride }, &[primitive(x), primitive(filter)])
}

impl<R: Runner> Operation<R, 2, 2> for Depthwise {
    fn forward(&self, [x, filter]: [&FloatTensor<R>; 2]) -> Computed<R, 2> {
        let picture = picture(&x.shape(), self.stride);
        let [height, width] = picture.out_size();
        let shape = Shape::new([picture.batch, height, width, picture.channels]);
        let [y] = R::run([x, filter], [shape], |[x, filter], [y]| convolution::depthwise(x, filter, picture, y));
        (y, [x.clone(), filter.clone()])
    }

    fn gradients(
        &self,
        [x, filter]: [FloatTensor<R>; 2],
        grad: FloatTensor<R>,
        [of_x, of_filter]: [bool; 2],
    ) -> [Option<FloatTensor<R>>; 2] {
        let picture = picture(&x.shape(), self.stride);
        let filter_grad = of_filter.then(|| {
            let [out] = R::run([&x, &grad], [filter.shape()], |[x, grad], [out]| {
                convolution::depthwise_filter_grad(x, grad, picture, out);
            });
            out
        });
        let x_grad = of_x.then(|| {
            let [out] = R::run([&filter, &grad], [x.shape()], |[filter, grad], [out]| {
                convolution::depthwise_input_grad(filter, grad, picture, out);
            });
            out
        });
        [x_grad, filter_grad]
    }
}

#[derive(Debug, Clone)]
struct Patches {
    stride: usize,
}

/// Returns the nine neighbours of each output pixel: `[batch, height, width, 9 · channels]`.
pub fn patches<B: Backend>(x: &Tensor<B, 4>, stride: usize) -> Option<Tensor<B, 4>> {
    compute(&Patches { stride }, &[primitive(x)])
}

impl<R: Runner> Operation<R, 1, 1> for Patches {
    fn forward(&self, [x]: [&FloatTensor<R>; 1]) -> Computed<R, 1> {
        let picture = picture(&x.shape(), self.stride);
        let [height, width] = picture.out_size();
        let shape = Shape::new([picture.batch, height, width, TAPS * picture.channels]);
        let [y] = R::run([x], [shape], |[x], [y]| convolution::patches(x, picture, y));
        (y, [x.clone()])
    }

    fn gradients(
        &self,
        [x]: [FloatTensor<R>; 1],
        grad: FloatTensor<R>,
        _wanted: [bool; 1],
    ) -> [Option<FloatTensor<R>>; 1] {
        let picture = picture(&x.shape(), self.stride);
        let [out] = R::run([&grad], [x.shape()], |[grad], [out]| convolution::patches_grad(grad, picture, out));
        [Some(out)]
    }
}

#[derive(Debug, Clone)]
struct MeanPixels;

/// Returns the mean of each picture over its pixels: `[batch, channels]`.
pub fn mean_pixels<B: Backend>(x: &Tensor<B, 4>) -> Option<Tensor<B, 2>> {
    compute(&MeanPixels, &[primitive(x)])
}

impl<R: Runner> Operation<R, 1, 1> for MeanPixels {
    fn forward(&self, [x]: [&FloatTensor<R>; 1]) -> Computed<R, 1> {
        let picture = picture(&x.shape(), 1);
        let shape = Shape::new([picture.batch, picture.channels]);
        let [y] = R::run([x], [shape], |[x], [y]| convolution::mean_pixels(x, picture, y));
        (y, [x.clone()])
    }

    fn gradients(
        &self,
        [x]: [FloatTensor<R>; 1],
        grad: FloatTensor<R>,
        _wanted: [bool; 1],
    ) -> [Option<FloatTensor<R>>; 1] {
        let picture = picture(&x.shape(), 1);
        let [out] = R::run([&grad], [x.shape()], |[grad], [out]| convolution::mean_pixels_grad(grad, picture, out));
        [Some(out)]
    }
}
