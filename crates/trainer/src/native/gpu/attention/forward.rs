//! The forward pass: a cube for each tile of queries, which goes over the tiles of keys up to its own.

use super::tiles::{
    Chunk, Pair, TILE, add_by_columns, add_by_rows, first_of_plane, left_of, load_tile, new_tile, put_rows, round,
    row_max, row_sum, rows_of, store_tile, zeros,
};
use cubecl::prelude::*;

/// The sums of 8 scores that a plane holds of a tile of keys.
const SCORES: usize = TILE / 8;

#[cube(launch)]
pub fn attend<F: Float>(
    queries: &Tensor<Vector<F, Chunk>>,
    keys: &Tensor<Vector<F, Chunk>>,
    values: &Tensor<Vector<F, Chunk>>,
    mixed: &mut Tensor<Vector<F, Chunk>>,
    logs: &mut Tensor<f32>,
    length: usize,
    query_stride: usize,
    key_stride: usize,
    value_stride: usize,
    mixed_stride: usize,
    shared: usize,
    scale: f32,
    #[comptime] steps: usize,
    #[define(F)] _dtype: StorageType,
) {
    let head = CUBE_POS_Y as usize;
    // The longest first.
    let tile = (length - 1) / TILE - CUBE_POS_X as usize;
    let key_rows = rows_of(head / shared, key_stride, length, steps);
    let value_rows = rows_of(head / shared, value_stride, length, steps);
    let mut some_keys = new_tile::<F>(steps);
    let mut some_values = new_tile::<F>(steps);

    load_tile(queries, &mut some_keys, rows_of(head, query_stride, length, steps), tile * TILE, steps);
    sync_cube();
    let left = left_of(&some_keys, steps);
    sync_cube();

    let mut sums = zeros(comptime!(2 * steps));
    let mut tops = Array::<f32>::new(2usize);
    let mut totals = Array::<f32>::new(2usize);
    #[unroll]
    for half in 0..2usize {
        tops[half] = f32::min_value();
        totals[half] = 0.0;
    }
    let tiles = tile + 1;
    for other in 0..tiles {
        load_tile(keys, &mut some_keys, key_rows, other * TILE, steps);
        load_tile(values, &mut some_values, value_rows, other * TILE, steps);
        sync_cube();
        let mut scores = zeros(SCORES);
        #[unroll]
        for part in 0..comptime!(SCORES / 2) {
            add_by_rows(&left, &some_keys, comptime!(16 * part), &mut scores, comptime!(2 * part), steps);
        }
        weigh(&mut scores, &mut sums, &mut tops, &mut totals, scale, other == tile, steps);
        #[unroll]
        for part in 0..comptime!(SCORES / 2) {
            let weights = round::<F>(&scores, comptime!(2 * part));
            add_by_columns(&weights, &some_values, comptime!(16 * part), &mut sums, steps);
        }
        sync_cube();
    }

    let lane = UNIT_POS_PLANE as usize;
    let column = lane % 4;
    let row = tile * TILE + first_of_plane() + lane / 4;
    #[unroll]
    for half in 0..2usize {
        let total = row_sum(totals[half]);
        let row = row + comptime!(8 * half);
        if column == 0 && row < length {
            logs[(CUBE_POS_Z as usize * CUBE_COUNT_Y as usize + head) * length + row] = tops[half] + total.ln();
        }
        totals[half] = 1.0 / total;
    }
    put_rows(&sums, &totals, &mut some_keys, steps);
    sync_cube();
    store_tile(&some_keys, mixed, rows_of(head, mixed_stride, length, steps), tile * TILE, steps);
}

/// Turns scores into exp(score − highest so far), and scales the sums and totals so far to the new highest score.
#[cube]
fn weigh(
    scores: &mut Sequence<Array<Vector<f32, Pair>>>,
    sums: &mut Sequence<Array<Vector<f32, Pair>>>,
    tops: &mut Array<f32>,
    totals: &mut Array<f32>,
    scale: f32,
    is_diagonal: bool,
    #[comptime] steps: usize,
) {
    let lane = UNIT_POS_PLANE as usize;
    #[unroll]
    for half in 0..2usize {
        // The last visible key, counted from the first of a lane; on all tiles but that of the queries, all are visible.
        let row = first_of_plane() + lane / 4 + comptime!(8 * half);
        let visible = select(is_diagonal, row, TILE);
        let mut higher = tops[half];
        #[unroll]
        for column in 0..SCORES {
            let found = scores[column][half];
            let mut scaled = Vector::<f32, Pair>::new(0.0);
            #[unroll]
            for at in 0..2usize {
                let key = lane % 4 * 2 + comptime!(8 * column + at);
                scaled[at] = select(key <= visible, found[at] * scale, f32::min_value());
                higher = max(higher, scaled[at]);
            }
            let part = scores.index_mut(column);
            part[half] = scaled;
        }
        let top = row_max(higher);
        let shrink = (tops[half] - top).exp();
        let mut total = totals[half] * shrink;
        #[unroll]
        for column in 0..SCORES {
            let scaled = scores[column][half];
            let mut weights = Vector::<f32, Pair>::new(0.0);
            #[unroll]
            for at in 0..2usize {
                let key = lane % 4 * 2 + comptime!(8 * column + at);
                weights[at] = select(key <= visible, (scaled[at] - top).exp(), f32::new(0.0));
                total += weights[at];
            }
            let part = scores.index_mut(column);
            part[half] = weights;
        }
        tops[half] = top;
        totals[half] = total;
        #[unroll]
        for column in 0..comptime!(2 * steps) {
            let sum = sums.index_mut(column);
            sum[half] = sum[half] * Vector::new(shrink);
        }
    }
}
