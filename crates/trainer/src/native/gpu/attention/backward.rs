//! The backward pass: a cube for each tile of queries, and one for each tile of keys. Neither adds to what another one
//! writes, so the order of additions is fixed.

use super::tiles::{
    Chunk, PART, Pair, THREADS, TILE, add_by_columns, add_by_rows, first_of_plane, left_of, load_tile, new_tile,
    put_rows, round, row_sum, rows_of, store_tile, zeros,
};
use cubecl::prelude::*;

/// Writes the gradient of queries, and Σ g ∘ mixed of each.
#[cube(launch)]
pub fn attend_query_grad<F: Float>(
    mixed: &Tensor<Vector<F, Chunk>>,
    grad: &Tensor<Vector<F, Chunk>>,
    queries: &Tensor<Vector<F, Chunk>>,
    keys: &Tensor<Vector<F, Chunk>>,
    values: &Tensor<Vector<F, Chunk>>,
    logs: &Tensor<f32>,
    of_queries: &mut Tensor<Vector<F, Chunk>>,
    means: &mut Tensor<f32>,
    length: usize,
    mixed_stride: usize,
    grad_stride: usize,
    query_stride: usize,
    key_stride: usize,
    value_stride: usize,
    output_stride: usize,
    shared: usize,
    scale: f32,
    #[comptime] steps: usize,
    #[define(F)] _dtype: StorageType,
) {
    let head = CUBE_POS_Y as usize;
    let tile = (length - 1) / TILE - CUBE_POS_X as usize;
    let first = tile * TILE;
    let key_rows = rows_of(head / shared, key_stride, length, steps);
    let value_rows = rows_of(head / shared, value_stride, length, steps);
    let mut some_keys = new_tile::<F>(steps);
    let mut some_values = new_tile::<F>(steps);

    load_tile(grad, &mut some_values, rows_of(head, grad_stride, length, steps), first, steps);
    load_tile(mixed, &mut some_keys, rows_of(head, mixed_stride, length, steps), first, steps);
    sync_cube();
    let left_grad = left_of(&some_values, steps);
    let mean = row_products(&left_grad, &left_of(&some_keys, steps), steps);
    sync_cube();
    load_tile(queries, &mut some_keys, rows_of(head, query_stride, length, steps), first, steps);
    sync_cube();
    let left = left_of(&some_keys, steps);
    sync_cube();

    let lane = UNIT_POS_PLANE as usize;
    let sequence = (CUBE_POS_Z as usize * CUBE_COUNT_Y as usize + head) * length;
    let mut log = Array::<f32>::new(2usize);
    let mut factors = Array::<f32>::new(2usize);
    #[unroll]
    for half in 0..2usize {
        let row = first + first_of_plane() + lane / 4 + comptime!(8 * half);
        log[half] = 0.0;
        factors[half] = scale;
        let column = lane % 4;
        if row < length {
            log[half] = logs[sequence + row];
            if column == 0 {
                means[sequence + row] = mean[half];
            }
        }
    }

    let mut sums = zeros(comptime!(2 * steps));
    let tiles = tile + 1;
    for other in 0..tiles {
        load_tile(keys, &mut some_keys, key_rows, other * TILE, steps);
        load_tile(values, &mut some_values, value_rows, other * TILE, steps);
        sync_cube();
        // On the diagonal, a plane sees no key past its own.
        let parts = select(other == tile, first_of_plane() / PART + 1, TILE / PART);
        for part in 0..parts {
            let mut scores = zeros(2usize);
            add_by_rows(&left, &some_keys, part * PART, &mut scores, 0usize, steps);
            let mut grads = zeros(2usize);
            add_by_rows(&left_grad, &some_values, part * PART, &mut grads, 0usize, steps);
            // The last visible key, counted from the first of this part.
            let last = first + first_of_plane() - other * TILE - part * PART;
            grads_of_scores(&scores, &mut grads, &log, &mean, scale, last);
            add_by_columns(&round::<F>(&grads, 0usize), &some_keys, part * PART, &mut sums, steps);
        }
        sync_cube();
    }
    put_rows(&sums, &factors, &mut some_keys, steps);
    sync_cube();
    store_tile(&some_keys, of_queries, rows_of(head, output_stride, length, steps), first, steps);
}

/// Returns Σ a ∘ b of each of a lane's two rows.
#[cube]
fn row_products<F: Float>(
    one: &Sequence<Array<Vector<F, Pair>>>,
    other: &Sequence<Array<Vector<F, Pair>>>,
    #[comptime] steps: usize,
) -> Array<f32> {
    let mut found = Array::<f32>::new(2usize);
    #[unroll]
    for half in 0..2usize {
        let mut sum = f32::new(0.0);
        #[unroll]
        for step in 0..steps {
            #[unroll]
            for side in 0..2usize {
                let one = Vector::<f32, Pair>::cast_from(one[step][comptime!(2 * side + half)]);
                let other = Vector::<f32, Pair>::cast_from(other[step][comptime!(2 * side + half)]);
                sum += one[0] * other[0] + one[1] * other[1];
            }
        }
        found[half] = row_sum(sum);
    }
    found
}

/// Turns the gradients of weights into those of scores, for a lane's two queries. A lane of row r sees keys up to `last` + r.
#[cube]
fn grads_of_scores(
    scores: &Sequence<Array<Vector<f32, Pair>>>,
    grads: &mut Sequence<Array<Vector<f32, Pair>>>,
    log: &Array<f32>,
    mean: &Array<f32>,
    scale: f32,
    last: usize,
) {
    let lane = UNIT_POS_PLANE as usize;
    #[unroll]
    for column in 0..2usize {
        #[unroll]
        for half in 0..2usize {
            let score = scores[column][half];
            let grad = grads[column][half];
            let mut found = Vector::<f32, Pair>::new(0.0);
            #[unroll]
            for at in 0..2usize {
                let key = lane % 4 * 2 + comptime!(8 * column + at);
                let weight = (score[at] * scale - log[half]).exp();
                let is_visible = key <= last + lane / 4 + comptime!(8 * half);
                found[at] = select(is_visible, weight * (grad[at] - mean[half]), f32::new(0.0));
            }
            let part = grads.index_mut(column);
            part[half] = found;
        }
    }
}

/// Writes the gradients of keys and values.
#[cube(launch)]
pub fn attend_key_grad<F: Float>(
    keys: &Tensor<Vector<F, Chunk>>,
    values: &Tensor<Vector<F, Chunk>>,
    queries: &Tensor<Vector<F, Chunk>>,
    grad: &Tensor<Vector<F, Chunk>>,
    logs: &Tensor<f32>,
    means: &Tensor<f32>,
    of_keys: &mut Tensor<Vector<F, Chunk>>,
    of_values: &mut Tensor<Vector<F, Chunk>>,
    length: usize,
    key_stride: usize,
    value_stride: usize,
    query_stride: usize,
    grad_stride: usize,
    of_keys_stride: usize,
    of_values_stride: usize,
    shared: usize,
    scale: f32,
    #[comptime] steps: usize,
    #[define(F)] _dtype: StorageType,
) {
    let head = CUBE_POS_Y as usize;
    let tile = CUBE_POS_X as usize;
    let first = tile * TILE;
    let mut some_queries = new_tile::<F>(steps);
    let mut some_grads = new_tile::<F>(steps);
    // The logs of a tile of queries, and their means.
    let mut of_rows = SharedMemory::<f32>::new(THREADS);

    load_tile(keys, &mut some_queries, rows_of(head, key_stride, length, steps), first, steps);
    load_tile(values, &mut some_grads, rows_of(head, value_stride, length, steps), first, steps);
    sync_cube();
    let left_keys = left_of(&some_queries, steps);
    let left_values = left_of(&some_grads, steps);
    sync_cube();

    let mut key_sums = zeros(comptime!(2 * steps));
    let mut value_sums = zeros(comptime!(2 * steps));
    for sharing in 0..shared {
        let head = head * shared + sharing;
        let query_rows = rows_of(head, query_stride, length, steps);
        let grad_rows = rows_of(head, grad_stride, length, steps);
        let sequence = (CUBE_POS_Z as usize * CUBE_COUNT_Y as usize * shared + head) * length;
        let tiles = (length - 1) / TILE + 1;
        for other in tile..tiles {
            load_tile(queries, &mut some_queries, query_rows, other * TILE, steps);
            load_tile(grad, &mut some_grads, grad_rows, other * TILE, steps);
            load_row_numbers(logs, means, &mut of_rows, sequence, other * TILE, length);
            sync_cube();
            // On the diagonal, no query before this plane's keys sees them.
            let begin = select(other == tile, first_of_plane() / PART, 0usize);
            for part in begin..TILE / PART {
                let mut weights = zeros(2usize);
                add_by_rows(&left_keys, &some_queries, part * PART, &mut weights, 0usize, steps);
                let mut grads = zeros(2usize);
                add_by_rows(&left_values, &some_grads, part * PART, &mut grads, 0usize, steps);
                // Counted from the first key of this plane.
                let query = (other - tile) * TILE + part * PART - first_of_plane();
                let queries_left = length - min(length, other * TILE + part * PART);
                weights_and_grads(&mut weights, &mut grads, &of_rows, part * PART, query, queries_left, scale);
                add_by_columns(&round::<F>(&weights, 0usize), &some_grads, part * PART, &mut value_sums, steps);
                add_by_columns(&round::<F>(&grads, 0usize), &some_queries, part * PART, &mut key_sums, steps);
            }
            sync_cube();
        }
    }

    let mut factors = Array::<f32>::new(2usize);
    factors[0] = scale;
    factors[1] = scale;
    put_rows(&key_sums, &factors, &mut some_queries, steps);
    factors[0] = 1.0;
    factors[1] = 1.0;
    put_rows(&value_sums, &factors, &mut some_grads, steps);
    sync_cube();
    store_tile(&some_queries, of_keys, rows_of(head, of_keys_stride, length, steps), first, steps);
    store_tile(&some_grads, of_values, rows_of(head, of_values_stride, length, steps), first, steps);
}

/// Copies the logs of a tile of queries to shared memory, and behind them their means.
#[cube]
fn load_row_numbers(
    logs: &Tensor<f32>,
    means: &Tensor<f32>,
    of_rows: &mut SharedMemory<f32>,
    sequence: usize,
    first: usize,
    length: usize,
) {
    let at = UNIT_POS as usize;
    let row = first + at % TILE;
    let mut found = f32::new(0.0);
    if row < length {
        if at < TILE {
            found = logs[sequence + row];
        } else {
            found = means[sequence + row];
        }
    }
    of_rows[at] = found;
}

/// Turns scores into weights, and the gradients of weights into those of scores, for a lane's two keys and 16 queries
/// from `row` of the tile on. The first is `query`, counted from the first key of this plane, and `queries_left` exist.
#[cube]
fn weights_and_grads(
    weights: &mut Sequence<Array<Vector<f32, Pair>>>,
    grads: &mut Sequence<Array<Vector<f32, Pair>>>,
    of_rows: &SharedMemory<f32>,
    row: usize,
    query: usize,
    queries_left: usize,
    scale: f32,
) {
    let lane = UNIT_POS_PLANE as usize;
    #[unroll]
    for column in 0..2usize {
        #[unroll]
        for half in 0..2usize {
            let score = weights[column][half];
            let grad = grads[column][half];
            let mut weight = Vector::<f32, Pair>::new(0.0);
            let mut found = Vector::<f32, Pair>::new(0.0);
            #[unroll]
            for at in 0..2usize {
                let place = lane % 4 * 2 + comptime!(8 * column + at);
                let is_visible = lane / 4 + comptime!(8 * half) <= query + place && place < queries_left;
                let exact = (score[at] * scale - of_rows[row + place]).exp();
                weight[at] = select(is_visible, exact, f32::new(0.0));
                let slope = weight[at] * (grad[at] - of_rows[row + place + TILE]);
                found[at] = select(is_visible, slope, f32::new(0.0));
            }
            let of_weights = weights.index_mut(column);
            of_weights[half] = weight;
            let of_scores = grads.index_mut(column);
            of_scores[half] = found;
        }
    }
}
