//! Compiles a loop over numbers for each SIMD level, and calls the widest that the processor has.
//!
//! No loop here uses fused multiply-add, and every sum has [`LANES`] partial sums at every level, so the level
//! changes the speed but no bit.

use std::fmt;

/// The partial sums of a reduction.
pub const LANES: usize = 16;

/// Defines a function that is compiled for AVX-512, AVX2 and the portable level.
///
/// The body becomes an inlined function, so what it calls must be `#[inline(always)]` to be compiled for the level.
macro_rules! for_each_simd_level {
    ($(#[$doc:meta])* $seen:vis fn $name:ident($($arg:ident: $kind:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        #[expect(unsafe_code, reason = "only the caller knows the features of the processor")]
        $seen fn $name($($arg: $kind),*) {
            #[inline(always)]
            fn portable($($arg: $kind),*) $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512($($arg: $kind),*) {
                    portable($($arg),*);
                }
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $kind),*) {
                    portable($($arg),*);
                }
                match $crate::simd::level() {
                    // SAFETY: level() has found these features.
                    $crate::simd::Level::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::simd::Level::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::simd::Level::Portable => {}
                }
            }
            portable($($arg),*);
        }
    };
}
pub(crate) use for_each_simd_level;

/// Features of a processor for which the loops are compiled, least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Any processor.
    Portable,
    /// AVX2 and FMA, which matrix products use.
    Avx2,
    /// AVX-512 with its byte, doubleword and short-vector parts.
    Avx512,
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Portable => "portable",
            Self::Avx2 => "AVX2",
            Self::Avx512 => "AVX-512",
        })
    }
}

#[cfg(test)]
thread_local! {
    /// The widest level that the loops of this thread may use.
    pub static WIDEST: std::cell::Cell<Level> = const { std::cell::Cell::new(Level::Avx512) };
}

/// Returns the widest level of this processor.
pub fn level() -> Level {
    #[cfg(test)]
    return detect().min(WIDEST.get());
    #[cfg(not(test))]
    detect()
}

fn detect() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        let wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        if wide && is_x86_feature_detected!("avx512dq") && is_x86_feature_detected!("avx512vl") {
            return Level::Avx512;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Level::Avx2;
        }
    }
    Level::Portable
}
