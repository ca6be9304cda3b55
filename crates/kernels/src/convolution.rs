//! 3×3 convolutions of pictures whose channels lie side by side: `[batch, height, width, channels]`.
//!
//! The border is padded with zeros. A depthwise convolution has one 3×3 filter per channel, `[9, channels]` here.
//! Any other is a matrix product of the [`patches`] of the picture.

use crate::linear;
use crate::math::{zip_map, zip_map2};
use crate::simd::for_each_simd_level;
use crate::threads::{Rows, split_rows, sum_rows};
use std::ops::Range;

/// The taps of a filter.
pub const TAPS: usize = 9;

/// The sizes of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Picture {
    /// The number of pictures.
    pub batch: usize,
    /// Height and width of the input.
    pub size: [usize; 2],
    /// The channels.
    pub channels: usize,
    /// The stride in both directions.
    pub stride: usize,
}

impl Picture {
    /// Returns height and width of the output.
    pub fn out_size(&self) -> [usize; 2] {
        self.size.map(|side| side.div_ceil(self.stride))
    }

    /// Returns the number of output rows in all pictures.
    fn out_rows(&self) -> usize {
        self.batch * self.out_size()[0]
    }

    /// Calls `visit` with each tap of an output row that is inside the picture: the tap, and the indices of output and
    /// input pixel.
    #[expect(clippy::inline_always, reason = "compiled for the features of its callers")]
    #[inline(always)]
    fn visit_row(&self, row: usize, mut visit: impl FnMut(usize, usize, usize)) {
        let ([height, width], [out_height, out_width]) = (self.size, self.out_size());
        let (picture, y) = (row / out_height, row % out_height);
        for down in 0..3 {
            let Some(from_y) = (y * self.stride + down).checked_sub(1).filter(|from| *from < height) else { continue };
            for x in 0..out_width {
                for right in 0..3 {
                    let from_x = (x * self.stride + right).checked_sub(1).filter(|from| *from < width);
                    let Some(from_x) = from_x else { continue };
                    visit(3 * down + right, row * out_width + x, (picture * height + from_y) * width + from_x);
                }
            }
        }
    }
}

/// Fills `y` with the depthwise convolution.
pub fn depthwise(x: &[f32], filter: &[f32], picture: Picture, y: &mut [f32]) {
    let width = picture.out_size()[1] * picture.channels;
    split_rows(picture.out_rows(), TAPS * width, [Rows { data: y, width }], &|range, [y]| {
        depthwise_rows(x, filter, picture, range, y);
    });
}

for_each_simd_level! {
    fn depthwise_rows(x: &[f32], filter: &[f32], picture: Picture, rows: Range<usize>, y: &mut [f32]) {
        let channels = picture.channels;
        y.fill(0.0);
        let before = rows.start * picture.out_size()[1];
        for row in rows {
            picture.visit_row(row, |tap, to, from| {
                let y = &mut y[(to - before) * channels..][..channels];
                let (x, filter) = (&x[from * channels..][..channels], &filter[tap * channels..][..channels]);
                zip_map2(y, x, filter, |y, x, filter| y + x * filter);
            });
        }
    }
}

/// Fills the gradient of the input from `grad`, that of the output.
pub fn depthwise_input_grad(filter: &[f32], grad: &[f32], picture: Picture, out: &mut [f32]) {
    let width = picture.size[0] * picture.size[1] * picture.channels;
    split_rows(picture.batch, TAPS * width, [Rows { data: out, width }], &|range, [out]| {
        input_grad_pictures(filter, grad, picture, range, out);
    });
}

for_each_simd_level! {
    fn input_grad_pictures(filter: &[f32], grad: &[f32], picture: Picture, range: Range<usize>, out: &mut [f32]) {
        let (channels, rows) = (picture.channels, picture.out_size()[0]);
        out.fill(0.0);
        let before = range.start * picture.size[0] * picture.size[1];
        for row in range.start * rows..range.end * rows {
            picture.visit_row(row, |tap, to, from| {
                let out = &mut out[(from - before) * channels..][..channels];
                let (grad, filter) = (&grad[to * channels..][..channels], &filter[tap * channels..][..channels]);
                zip_map2(out, grad, filter, |out, grad, filter| out + grad * filter);
            });
        }
    }
}

/// Fills the gradient of the filter from `grad`, that of the output.
pub fn depthwise_filter_grad(x: &[f32], grad: &[f32], picture: Picture, out: &mut [f32]) {
    sum_rows(picture.out_rows(), TAPS * picture.channels, out, &|range, sum| {
        filter_grad_rows(x, grad, picture, range, sum);
    });
}

for_each_simd_level! {
    fn filter_grad_rows(x: &[f32], grad: &[f32], picture: Picture, rows: Range<usize>, sum: &mut [f32]) {
        let channels = picture.channels;
        for row in rows {
            picture.visit_row(row, |tap, to, from| {
                let sum = &mut sum[tap * channels..][..channels];
                let (x, grad) = (&x[from * channels..][..channels], &grad[to * channels..][..channels]);
                zip_map2(sum, x, grad, |sum, x, grad| sum + x * grad);
            });
        }
    }
}

/// Fills `out` with the nine neighbours of each output pixel, `[pixels, 9 · channels]`.
pub fn patches(x: &[f32], picture: Picture, out: &mut [f32]) {
    let (channels, across) = (picture.channels, picture.out_size()[1]);
    let width = across * TAPS * channels;
    split_rows(picture.out_rows(), width, [Rows { data: out, width }], &|range, [out]| {
        out.fill(0.0);
        let before = range.start * across;
        for row in range {
            picture.visit_row(row, |tap, to, from| {
                let out = &mut out[((to - before) * TAPS + tap) * channels..][..channels];
                out.copy_from_slice(&x[from * channels..][..channels]);
            });
        }
    });
}

/// Fills the gradient of the picture from that of its patches.
pub fn patches_grad(grad: &[f32], picture: Picture, out: &mut [f32]) {
    let (channels, rows) = (picture.channels, picture.out_size()[0]);
    let width = picture.size[0] * picture.size[1] * channels;
    split_rows(picture.batch, TAPS * width, [Rows { data: out, width }], &|range, [out]| {
        out.fill(0.0);
        let before = range.start * picture.size[0] * picture.size[1];
        for row in range.start * rows..range.end * rows {
            picture.visit_row(row, |tap, to, from| {
                let out = &mut out[(from - before) * channels..][..channels];
                let grad = &grad[(to * TAPS + tap) * channels..][..channels];
                zip_map(out, grad, |out, grad| out + grad);
            });
        }
    });
}

/// Fills `out` with the mean of each picture over its pixels, `[batch, channels]`.
pub fn mean_pixels(x: &[f32], picture: Picture, out: &mut [f32]) {
    let (channels, pixels) = (picture.channels, picture.size[0] * picture.size[1]);
    for (pixels_of, mean) in x.chunks_exact(pixels * channels).zip(out.chunks_exact_mut(channels)) {
        linear::add_rows(pixels_of, mean);
        for mean in mean {
            *mean /= pixels as f32;
        }
    }
}

/// Fills the gradient of the picture from that of its mean.
pub fn mean_pixels_grad(grad: &[f32], picture: Picture, out: &mut [f32]) {
    let (channels, pixels) = (picture.channels, picture.size[0] * picture.size[1]);
    for (pixels_of, grad) in out.chunks_exact_mut(pixels * channels).zip(grad.chunks_exact(channels)) {
        for pixel in pixels_of.chunks_exact_mut(channels) {
            pixel.copy_from_slice(grad);
        }
        for value in pixels_of {
            *value /= pixels as f32;
        }
    }
}
