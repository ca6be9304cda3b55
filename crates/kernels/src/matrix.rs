//! Matrix products, on one thread or on all.

#![expect(unsafe_code, reason = "the crate `gemm` takes pointers; sizes are checked here")]

/// The least multiplications that are worth all threads.
const PARALLEL: usize = 1 << 22;

/// A matrix in a slice: element (i, j) is at `offset + i · row_stride + j · column_stride`.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    data: &'a [f32],
    size: [usize; 2],
    strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    /// Returns the matrix of these rows, each `row_stride` after the one before.
    pub fn strided(data: &'a [f32], size: [usize; 2], row_stride: usize) -> Self {
        Self { data, size, strides: [row_stride, 1] }
    }

    /// Returns the matrix whose rows follow each other.
    pub fn new(data: &'a [f32], size: [usize; 2]) -> Self {
        Self::strided(data, size, size[1])
    }

    /// Returns the transposed matrix.
    pub fn transposed(self) -> Self {
        let ([rows, columns], [down, right]) = (self.size, self.strides);
        Self { data: self.data, size: [columns, rows], strides: [right, down] }
    }
}

/// A matrix to be written, whose rows are `row_stride` apart.
pub struct Output<'a> {
    /// The numbers, from the first of the matrix.
    pub data: &'a mut [f32],
    /// The distance of two rows.
    pub row_stride: usize,
    /// Whether the product is added to what is there.
    pub add: bool,
}

/// The threads of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// The calling one.
    One,
    /// All, if the product is large enough.
    All,
}

/// Writes `scale` · a · b.
///
/// # Panics
/// If a matrix does not fit its slice, or the sizes do not fit each other.
pub fn multiply(out: Output<'_>, scale: f32, a: Matrix<'_>, b: Matrix<'_>, threads: Threads) {
    let Output { data, row_stride, add } = out;
    let ([rows, inner], [also_inner, columns]) = (a.size, b.size);
    assert_eq!(inner, also_inner, "a product of {:?} and {:?}", a.size, b.size);
    let fits = |length: usize, [rows, columns]: [usize; 2], [down, right]: [usize; 2]| {
        rows == 0 || columns == 0 || (rows - 1) * down + (columns - 1) * right < length
    };
    assert!(fits(a.data.len(), a.size, a.strides) && fits(b.data.len(), b.size, b.strides), "a factor fits its slice");
    assert!(fits(data.len(), [rows, columns], [row_stride, 1]), "the product fits its slice");
    assert!(rows <= 1 || row_stride >= columns, "the rows of the product do not overlap");
    let large = rows * inner * columns >= PARALLEL;
    let parallelism = if large && threads == Threads::All && rayon::current_num_threads() > 1 {
        gemm::Parallelism::Rayon(0)
    } else {
        gemm::Parallelism::None
    };
    let stride = usize::cast_signed;
    // SAFETY: the assertions bound every element of the three matrices by its slice; the output is borrowed
    // mutably, so it overlaps neither factor.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            data.as_mut_ptr(),
            1,
            stride(row_stride),
            add,
            a.data.as_ptr(),
            stride(a.strides[1]),
            stride(a.strides[0]),
            b.data.as_ptr(),
            stride(b.strides[1]),
            stride(b.strides[0]),
            1.0,
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}
