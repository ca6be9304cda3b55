//! Causal attention of many heads, without storing the scores: only the logarithm of each row's sum is kept.
//!
//! ```text
//! forward    P = softmax(q kᵀ / √d)         o = P v
//! backward   P from q, k and the sums       T = P ∘ (g vᵀ − Σ g ∘ o)
//!            grad of v = Pᵀ g               grad of q = T k / √d        grad of k = Tᵀ q / √d
//! ```
//! A row of q, k, v and o holds all heads of a position, one after another. Positions may rotate q and k, which the
//! gradients undo. Scores exist for [`ROWS`] positions of a head at a time, and only up to the last of them.

use crate::math::{exp, exponentiate, largest, zip_map};
use crate::matrix::{Matrix, Output, Threads, multiply};
use crate::simd::for_each_simd_level;
use crate::threads::{Rows, split_rows};
use std::borrow::Cow;

/// The positions whose scores exist at a time.
const ROWS: usize = 64;

/// The sizes of an attention layer, and its positions.
#[derive(Debug, Clone, Copy)]
pub struct Sizes<'a> {
    /// The sequences.
    pub batch: usize,
    /// The positions of each.
    pub length: usize,
    /// The heads of queries.
    pub heads: usize,
    /// The heads of keys and values; each serves the same number of query heads.
    pub kv_heads: usize,
    /// The numbers of a head.
    pub size: usize,
    /// Cosine and sine of each position's rotations, `length` rows of `size` numbers.
    pub rotary: Option<[&'a [f32]; 2]>,
}

impl Sizes<'_> {
    fn groups(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn scale(&self) -> f32 {
        1.0 / (self.size as f32).sqrt()
    }

    /// The numbers of a head in a sequence.
    fn head_numbers(&self) -> usize {
        self.length * self.size
    }
}

/// Fills the output and, for each head of each sequence, the logarithms of its rows' sums.
pub fn forward([q, k, v]: [&[f32]; 3], heads: Sizes<'_>, out: &mut [f32], sums: &mut [f32]) {
    let (numbers, groups) = (heads.groups() * heads.head_numbers(), heads.groups());
    let mut by_head = vec![0.0; out.len()];
    let outputs = [Rows { data: &mut by_head, width: numbers }, Rows { data: sums, width: groups * heads.length }];
    let cost = numbers * heads.length;
    split_rows(heads.batch * heads.kv_heads, cost, outputs, &|range, [out, sums]| {
        let parts = out.chunks_exact_mut(heads.head_numbers()).zip(sums.chunks_exact_mut(heads.length));
        for (at, (out, sums)) in (range.start * groups..).zip(parts) {
            forward_head(&Head::of([q, k, v], heads, at), out, sums);
        }
    });
    join_heads(&by_head, heads, heads.heads, out);
}

/// Fills the gradients of q, k and v from `grad`, that of the output.
pub fn backward(
    inputs: [&[f32]; 3],
    [out, sums, grad]: [&[f32]; 3],
    heads: Sizes<'_>,
    [of_q, of_k, of_v]: [&mut [f32]; 3],
) {
    let (groups, numbers) = (heads.groups(), heads.head_numbers());
    let mut parts = [vec![0.0; of_q.len()], vec![0.0; of_k.len()], vec![0.0; of_v.len()]];
    let [q_part, k_part, v_part] = &mut parts;
    let outputs =
        [(q_part, groups * numbers), (k_part, numbers), (v_part, numbers)].map(|(data, width)| Rows { data, width });
    let cost = groups * numbers * heads.length;
    split_rows(heads.batch * heads.kv_heads, cost, outputs, &|range, [of_q, of_k, of_v]| {
        let by_head = of_k.chunks_exact_mut(numbers).zip(of_v.chunks_exact_mut(numbers));
        for ((at, of_q), (of_k, of_v)) in range.zip(of_q.chunks_exact_mut(groups * numbers)).zip(by_head) {
            for (group, of_q) in of_q.chunks_exact_mut(numbers).enumerate() {
                let number = at * groups + group;
                let head = Head::of(inputs, heads, number);
                let sums = &sums[number * heads.length..][..heads.length];
                let ends = [out, grad].map(|rows| head_rows(rows, heads, heads.heads, number));
                backward_head(&head, ends, sums, [&mut *of_q, &mut *of_k, &mut *of_v]);
                heads.rotary.into_iter().for_each(|[cos, sin]| unrotate(of_q, cos, sin, heads.size));
            }
            heads.rotary.into_iter().for_each(|[cos, sin]| unrotate(of_k, cos, sin, heads.size));
        }
    });
    let [q_part, k_part, v_part] = parts;
    join_heads(&q_part, heads, heads.heads, of_q);
    join_heads(&k_part, heads, heads.kv_heads, of_k);
    join_heads(&v_part, heads, heads.kv_heads, of_v);
}

/// The inputs of one query head in one sequence.
struct Head<'a> {
    q: Part<'a>,
    k: Part<'a>,
    v: Part<'a>,
    heads: Sizes<'a>,
}

/// Rows of one head: `stride` numbers apart.
struct Part<'a> {
    numbers: Cow<'a, [f32]>,
    stride: usize,
}

impl Part<'_> {
    /// Returns the rows of these positions.
    fn rows(&self, positions: std::ops::Range<usize>, size: usize) -> Matrix<'_> {
        Matrix::strided(&self.numbers[positions.start * self.stride..], [positions.len(), size], self.stride)
    }
}

impl<'a> Head<'a> {
    /// Returns the head of this number, counted through all sequences.
    fn of([q, k, v]: [&'a [f32]; 3], heads: Sizes<'a>, number: usize) -> Self {
        let kv_number = number / heads.groups();
        let turned = |part: Part<'a>| match heads.rotary {
            Some(tables) => rotate(&part, tables, heads),
            None => part,
        };
        Self {
            q: turned(head_rows(q, heads, heads.heads, number)),
            k: turned(head_rows(k, heads, heads.kv_heads, kv_number)),
            v: head_rows(v, heads, heads.kv_heads, kv_number),
            heads,
        }
    }
}

/// Returns the rows of a head, of `count` in a row, counted through all sequences.
fn head_rows<'a>(rows: &'a [f32], heads: Sizes<'_>, count: usize, number: usize) -> Part<'a> {
    let stride = count * heads.size;
    let first = number / count * heads.length * stride + number % count * heads.size;
    let last = first + (heads.length - 1) * stride + heads.size;
    Part { numbers: Cow::Borrowed(&rows[first..last]), stride }
}

/// Returns the blocks of positions of a head.
fn blocks(length: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..length).step_by(ROWS).map(move |first| first..(first + ROWS).min(length))
}

fn forward_head(head: &Head<'_>, out: &mut [f32], sums: &mut [f32]) {
    let Sizes { size, length, .. } = head.heads;
    let mut scores = vec![0.0; ROWS.min(length) * length];
    for rows in blocks(length) {
        let known = rows.end;
        let scores = &mut scores[..rows.len() * known];
        scores_of(head, rows.clone(), scores);
        softmax(scores, rows.start, &mut sums[rows.clone()]);
        let out = Output { data: &mut out[rows.start * size..rows.end * size], row_stride: size, add: false };
        let shares = Matrix::new(scores, [rows.len(), known]);
        multiply(out, 1.0, shares, head.v.rows(0..known, size), Threads::One);
    }
}

/// Fills the gradient of q, and adds to those of k and v.
fn backward_head(head: &Head<'_>, [out, grad]: [Part<'_>; 2], sums: &[f32], [of_q, of_k, of_v]: [&mut [f32]; 3]) {
    let Sizes { size, length, .. } = head.heads;
    let scale = head.heads.scale();
    let most = ROWS.min(length) * length;
    let (mut shares, mut grads) = (vec![0.0; most], vec![0.0; most]);
    for rows in blocks(length) {
        let (count, known) = (rows.len(), rows.end);
        let (shares, grads) = (&mut shares[..count * known], &mut grads[..count * known]);
        scores_of(head, rows.clone(), shares);
        recompute_shares(shares, rows.start, &sums[rows.clone()]);
        let grad_rows = grad.rows(rows.clone(), size);
        let into = |data, add| Output { data, row_stride: size, add };
        let by_position = Matrix::new(shares, [count, known]).transposed();
        multiply(into(&mut of_v[..known * size], true), 1.0, by_position, grad_rows, Threads::One);
        let product = Output { data: grads, row_stride: known, add: false };
        multiply(product, 1.0, grad_rows, head.v.rows(0..known, size).transposed(), Threads::One);
        let mut means = [0.0; ROWS];
        for (mean, row) in means.iter_mut().zip(rows.clone()) {
            let [out, grad] = [&out, &grad].map(|part| &part.numbers[row * part.stride..][..size]);
            *mean = out.iter().zip(grad).map(|(out, grad)| out * grad).sum();
        }
        score_grads(shares, grads, &means, known);
        let grads = Matrix::new(grads, [count, known]);
        let of_q = into(&mut of_q[rows.start * size..rows.end * size], false);
        multiply(of_q, scale, grads, head.k.rows(0..known, size), Threads::One);
        let of_k = into(&mut of_k[..known * size], true);
        multiply(of_k, scale, grads.transposed(), head.q.rows(rows, size), Threads::One);
    }
}

/// Fills the scores of these positions, up to the last of them.
fn scores_of(head: &Head<'_>, rows: std::ops::Range<usize>, scores: &mut [f32]) {
    let Sizes { size, .. } = head.heads;
    let out = Output { data: scores, row_stride: rows.end, add: false };
    let keys = head.k.rows(0..rows.end, size).transposed();
    multiply(out, head.heads.scale(), head.q.rows(rows, size), keys, Threads::One);
}

for_each_simd_level! {
    fn softmax(scores: &mut [f32], first: usize, sums: &mut [f32]) {
        let width = scores.len() / sums.len();
        for ((row, sum), position) in scores.chunks_exact_mut(width).zip(sums).zip(first..) {
            let (row, later) = row.split_at_mut(position + 1);
            later.fill(0.0);
            let highest = largest(row);
            let total = exponentiate(row, highest);
            let share = 1.0 / total;
            for value in row.iter_mut() {
                *value *= share;
            }
            *sum = highest + total.ln();
        }
    }
}

for_each_simd_level! {
    fn recompute_shares(scores: &mut [f32], first: usize, sums: &[f32]) {
        let width = scores.len() / sums.len();
        for ((row, sum), position) in scores.chunks_exact_mut(width).zip(sums).zip(first..) {
            let (row, later) = row.split_at_mut(position + 1);
            later.fill(0.0);
            for value in row.iter_mut() {
                *value = exp(*value - sum);
            }
        }
    }
}

for_each_simd_level! {
    fn score_grads(shares: &[f32], grads: &mut [f32], means: &[f32], width: usize) {
        for ((grads, shares), mean) in grads.chunks_exact_mut(width).zip(shares.chunks_exact(width)).zip(means) {
            zip_map(grads, shares, |grad, share| share * (grad - mean));
        }
    }
}

/// Returns the rotated rows, one after another.
fn rotate<'a>(part: &Part<'_>, [cos, sin]: [&[f32]; 2], heads: Sizes<'_>) -> Part<'a> {
    let size = heads.size;
    let mut turned = vec![0.0; heads.head_numbers()];
    let tables = cos.chunks_exact(size).zip(sin.chunks_exact(size));
    for ((row, (cos, sin)), out) in part.numbers.chunks(part.stride).zip(tables).zip(turned.chunks_exact_mut(size)) {
        let (first, second) = row[..size].split_at(size / 2);
        let (out_first, out_second) = out.split_at_mut(size / 2);
        for (at, (x, y)) in first.iter().zip(second).enumerate() {
            out_first[at] = x * cos[at] - y * sin[at];
            out_second[at] = y * cos[at + size / 2] + x * sin[at + size / 2];
        }
    }
    Part { numbers: Cow::Owned(turned), stride: size }
}

/// Rotates rows back.
fn unrotate(rows: &mut [f32], cos: &[f32], sin: &[f32], size: usize) {
    let tables = cos.chunks_exact(size).zip(sin.chunks_exact(size));
    for (row, (cos, sin)) in rows.chunks_exact_mut(size).zip(tables) {
        let (first, second) = row.split_at_mut(size / 2);
        for (at, (x, y)) in first.iter_mut().zip(second).enumerate() {
            (*x, *y) = (*x * cos[at] + *y * sin[at + size / 2], *y * cos[at + size / 2] - *x * sin[at]);
        }
    }
}

/// Puts heads that lie one after another side by side: `count` in a row.
fn join_heads(by_head: &[f32], heads: Sizes<'_>, count: usize, rows: &mut [f32]) {
    let Sizes { length, size, .. } = heads;
    let width = count * size;
    split_rows(heads.batch * length, width, [Rows { data: rows, width }], &|range, [rows]| {
        for (position, row) in range.zip(rows.chunks_exact_mut(width)) {
            let (sequence, position) = (position / length, position % length);
            for (head, out) in row.chunks_exact_mut(size).enumerate() {
                let first = ((sequence * count + head) * length + position) * size;
                out.copy_from_slice(&by_head[first..first + size]);
            }
        }
    });
}
