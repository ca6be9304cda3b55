//! Splits rows among the threads.
//!
//! The result of a row never depends on the split, so the number of threads changes no bit. Sums over rows are
//! made of blocks of [`SUM_ROWS`] rows, whatever the threads.

use std::ops::Range;

/// The least work, in numbers touched, that is worth another thread.
const LEAST_WORK: usize = 1 << 14;
/// The rows of a block of a sum.
pub const SUM_ROWS: usize = 32;

/// Rows of an output, to be filled.
pub struct Rows<'a> {
    /// The numbers.
    pub data: &'a mut [f32],
    /// The numbers in a row.
    pub width: usize,
}

/// Calls `work` with ranges that cover all `rows`, and these rows of each output. `cost` is what a row costs, in
/// numbers touched.
pub fn split_rows<const N: usize>(
    rows: usize,
    cost: usize,
    outputs: [Rows<'_>; N],
    work: &(impl Fn(Range<usize>, [&mut [f32]; N]) + Sync),
) {
    if rows == 0 {
        return;
    }
    let threads = rayon::current_num_threads().max(1);
    let least = (LEAST_WORK / cost.max(1)).max(rows.div_ceil(4 * threads)).max(1);
    split(0..rows, if threads == 1 { rows.max(1) } else { least }, outputs, work);
}

fn split<const N: usize>(
    rows: Range<usize>,
    least: usize,
    outputs: [Rows<'_>; N],
    work: &(impl Fn(Range<usize>, [&mut [f32]; N]) + Sync),
) {
    if rows.len() < 2 * least {
        return work(rows, outputs.map(|output| output.data));
    }
    let middle = rows.start + rows.len() / 2;
    let mut after: Vec<Rows<'_>> = Vec::with_capacity(N);
    let before = outputs.map(|Rows { data, width }| {
        let (first, second) = data.split_at_mut((middle - rows.start) * width);
        after.push(Rows { data: second, width });
        Rows { data: first, width }
    });
    let mut after = after.into_iter();
    let after = std::array::from_fn(|_| after.next().unwrap_or(Rows { data: &mut [], width: 0 }));
    rayon::join(|| split(rows.start..middle, least, before, work), || split(middle..rows.end, least, after, work));
}

/// Sums blocks of rows: `add` adds the rows of a range to a sum of `width` numbers.
pub fn sum_rows(rows: usize, width: usize, sum: &mut [f32], add: &(impl Fn(Range<usize>, &mut [f32]) + Sync)) {
    let blocks = rows.div_ceil(SUM_ROWS);
    let mut parts = vec![0.0; blocks * width];
    split_rows(blocks, SUM_ROWS * width, [Rows { data: &mut parts, width }], &|range, [parts]| {
        for (block, part) in range.zip(parts.chunks_exact_mut(width.max(1))) {
            add(block * SUM_ROWS..((block + 1) * SUM_ROWS).min(rows), part);
        }
    });
    sum.fill(0.0);
    for part in parts.chunks_exact(width.max(1)) {
        for (sum, value) in sum.iter_mut().zip(part) {
            *sum += value;
        }
    }
}

/// Makes the calling thread one of the pool's, so that a kernel neither waits for another thread to begin nor is
/// woken at its end. For the thread that trains, which lives as long as its process.
pub fn join_pool() {
    // A pool of this thread alone would never run a job that another thread waits for.
    let asked =
        std::env::var("RAYON_NUM_THREADS").ok().and_then(|text| text.parse().ok()).filter(|threads| *threads > 0);
    let threads = asked.or_else(|| Some(std::thread::available_parallelism().ok()?.get()));
    if threads.is_none_or(|threads| threads < 2) {
        return;
    }
    let pool = rayon::ThreadPoolBuilder::new().use_current_thread();
    // If there is a pool already, that one serves.
    let _existing = pool.build_global();
}
