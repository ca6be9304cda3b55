//! Products of tiles on tensor cores: matrix instructions of 16 × 8 × 16 numbers, with sums in f32.
//!
//! ```text
//! sums += A Bᵀ    B is 16 rows of a tile             sums += A B    B is 16 rows of a tile
//! ```
//! A plane holds A and sums in registers, in the layout of `mma.sync` (PTX manual, m16n8k16): lane l has row l / 4 and that 8
//! below, and in each the columns 2 (l % 4) and the next one. So sums, rounded, are the A of a next product as they are.

use cubecl::cmma::MmaDefinition;
use cubecl::ir::MatrixIdent;
use cubecl::prelude::*;

/// The rows of a tile.
pub const TILE: usize = 64;
/// The rows of a plane.
pub const PART: usize = 16;
/// The threads of a cube: a plane for each part of a tile.
pub const THREADS: usize = TILE / PART * 32;

/// The numbers that a thread moves at once, 16 bytes.
pub type Chunk = Const<8>;
/// The numbers in a register.
pub type Pair = Const<2>;

/// Rows of one head: where the first begins, their distance in chunks, and their number.
#[derive(CubeType, Clone, Copy)]
pub struct Rows {
    begin: usize,
    stride: usize,
    length: usize,
}

/// Returns the rows of a head of this cube's sequence.
#[cube]
pub fn rows_of(head: usize, stride: usize, length: usize, #[comptime] steps: usize) -> Rows {
    Rows { begin: CUBE_POS_Z as usize * length * stride + head * comptime!(2 * steps), stride, length }
}

/// Returns shared memory for a tile of heads of 16 · `steps` numbers. Rows are a chunk apart, so that eight of them lie in
/// different banks.
#[cube]
pub fn new_tile<F: Float>(#[comptime] steps: usize) -> SharedMemory<Vector<F, Chunk>> {
    SharedMemory::<Vector<F, Chunk>>::new(comptime!(TILE * (2 * steps + 1)))
}

/// Copies a tile from memory, from row `first` on. Rows past the end are zeros.
#[cube]
pub fn load_tile<F: Float>(
    from: &Tensor<Vector<F, Chunk>>,
    tile: &mut SharedMemory<Vector<F, Chunk>>,
    rows: Rows,
    first: usize,
    #[comptime] steps: usize,
) {
    let chunks = comptime!(2 * steps);
    #[unroll]
    for turn in 0..steps {
        let at = UNIT_POS as usize + comptime!(turn * THREADS);
        let row = at / chunks;
        let chunk = at % chunks;
        let mut value = Vector::<F, Chunk>::new(F::new(0.0));
        if first + row < rows.length {
            value = from[rows.begin + (first + row) * rows.stride + chunk];
        }
        tile[row * comptime!(2 * steps + 1) + chunk] = value;
    }
}

/// Copies a tile to memory.
#[cube]
pub fn store_tile<F: Float>(
    tile: &SharedMemory<Vector<F, Chunk>>,
    to: &mut Tensor<Vector<F, Chunk>>,
    rows: Rows,
    first: usize,
    #[comptime] steps: usize,
) {
    let chunks = comptime!(2 * steps);
    #[unroll]
    for turn in 0..steps {
        let at = UNIT_POS as usize + comptime!(turn * THREADS);
        let row = at / chunks;
        let chunk = at % chunks;
        if first + row < rows.length {
            to[rows.begin + (first + row) * rows.stride + chunk] = tile[row * comptime!(2 * steps + 1) + chunk];
        }
    }
}

/// Returns 16 rows of a tile, those of this plane, as the A of products: 16 columns in each register array.
#[cube]
pub fn left_of<F: Float>(
    tile: &SharedMemory<Vector<F, Chunk>>,
    #[comptime] steps: usize,
) -> Sequence<Array<Vector<F, Pair>>> {
    let lane = UNIT_POS_PLANE as usize;
    let at = (first_of_plane() + lane % 16) * comptime!(2 * steps + 1) + lane / 16;
    let mut parts = Sequence::<Array<Vector<F, Pair>>>::new();
    #[unroll]
    for step in 0..steps {
        parts.push(load_matrices(tile, at + comptime!(2 * step), false));
    }
    parts
}

/// Returns the first row of this plane in a tile.
#[cube]
pub fn first_of_plane() -> usize {
    UNIT_POS as usize / 32 * PART
}

/// Loads four matrices of 8 × 8 numbers; each lane gives the place of a row.
#[cube]
fn load_matrices<F: Float>(
    tile: &SharedMemory<Vector<F, Chunk>>,
    at: usize,
    #[comptime] transposed: bool,
) -> Array<Vector<F, Pair>> {
    let product = MmaDefinition::<F, F, f32>::new(16usize, 8usize, 16usize);
    product.load_matrix::<Vector<F, Chunk>, Pair>(&tile.slice(at, at + 1), MatrixIdent::A, 4usize, transposed)
}

/// Returns sums of 16 × 8 numbers that are zero.
#[cube]
pub fn zeros(#[comptime] count: usize) -> Sequence<Array<Vector<f32, Pair>>> {
    let mut sums = Sequence::<Array<Vector<f32, Pair>>>::new();
    #[unroll]
    for _ in 0..count {
        let mut sum = Array::<Vector<f32, Pair>>::new(2usize);
        sum[0] = Vector::new(0.0);
        sum[1] = Vector::new(0.0);
        sums.push(sum);
    }
    sums
}

/// Adds A Bᵀ to the sums `to` and `to` + 1; B is the 16 rows of the tile from `row` on.
#[cube]
pub fn add_by_rows<F: Float>(
    left: &Sequence<Array<Vector<F, Pair>>>,
    tile: &SharedMemory<Vector<F, Chunk>>,
    row: usize,
    sums: &mut Sequence<Array<Vector<f32, Pair>>>,
    #[comptime] to: usize,
    #[comptime] steps: usize,
) {
    let lane = UNIT_POS_PLANE as usize;
    let at = (row + lane / 16 * 8 + lane % 8) * comptime!(2 * steps + 1) + lane / 8 % 2;
    #[unroll]
    for step in 0..steps {
        let right = load_matrices(tile, at + comptime!(2 * step), false);
        add_products(&left[step], &right, sums, to);
    }
}

/// Adds A B to all sums; B is the 16 rows of the tile from `row` on.
#[cube]
pub fn add_by_columns<F: Float>(
    left: &Array<Vector<F, Pair>>,
    tile: &SharedMemory<Vector<F, Chunk>>,
    row: usize,
    sums: &mut Sequence<Array<Vector<f32, Pair>>>,
    #[comptime] steps: usize,
) {
    let lane = UNIT_POS_PLANE as usize;
    let at = (row + lane % 16) * comptime!(2 * steps + 1) + lane / 16;
    #[unroll]
    for step in 0..steps {
        let right = load_matrices(tile, at + comptime!(2 * step), true);
        add_products(left, &right, sums, comptime!(2 * step));
    }
}

/// Adds the products with two B to the sums `to` and `to` + 1.
#[cube]
fn add_products<F: Float>(
    left: &Array<Vector<F, Pair>>,
    right: &Array<Vector<F, Pair>>,
    sums: &mut Sequence<Array<Vector<f32, Pair>>>,
    #[comptime] to: usize,
) {
    let product = MmaDefinition::<F, F, f32>::new(16usize, 8usize, 16usize);
    #[unroll]
    for half in 0..2usize {
        let mut one = Array::<Vector<F, Pair>>::new(2usize);
        one[0] = right[comptime!(2 * half)];
        one[1] = right[comptime!(2 * half + 1)];
        let found = product.execute(left, &one, &sums[comptime!(to + half)]);
        let sum = sums.index_mut(comptime!(to + half));
        sum[0] = found[0];
        sum[1] = found[1];
    }
}

/// Returns the sums `from` and `from` + 1, rounded, as the A of a product.
#[cube]
pub fn round<F: Float>(sums: &Sequence<Array<Vector<f32, Pair>>>, #[comptime] from: usize) -> Array<Vector<F, Pair>> {
    let mut left = Array::<Vector<F, Pair>>::new(4usize);
    #[unroll]
    for half in 0..2usize {
        let sum = &sums[comptime!(from + half)];
        left[comptime!(2 * half)] = Vector::cast_from(sum[0]);
        left[comptime!(2 * half + 1)] = Vector::cast_from(sum[1]);
    }
    left
}

/// Writes sums into this plane's rows of a tile; each of a lane's two rows times its factor.
#[cube]
pub fn put_rows<F: Float>(
    sums: &Sequence<Array<Vector<f32, Pair>>>,
    factors: &Array<f32>,
    tile: &mut SharedMemory<Vector<F, Chunk>>,
    #[comptime] steps: usize,
) {
    let lane = UNIT_POS_PLANE as usize;
    let mut pairs = tile.to_slice_mut().with_vector_size::<Pair>();
    #[unroll]
    for column in 0..comptime!(2 * steps) {
        #[unroll]
        for half in 0..2usize {
            let row = first_of_plane() + lane / 4 + comptime!(8 * half);
            let at = (row * comptime!(2 * steps + 1) + column) * 4 + lane % 4;
            pairs[at] = Vector::cast_from(sums[column][half] * Vector::new(factors[half]));
        }
    }
}

/// Sums a value over the four lanes of a row.
#[cube]
pub fn row_sum(value: f32) -> f32 {
    let pair = value + plane_shuffle_xor(value, 1u32);
    pair + plane_shuffle_xor(pair, 2u32)
}

/// Returns the highest value of the four lanes of a row.
#[cube]
pub fn row_max(value: f32) -> f32 {
    let pair = max(value, plane_shuffle_xor(value, 1u32));
    max(pair, plane_shuffle_xor(pair, 2u32))
}
