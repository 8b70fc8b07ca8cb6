//! Sums that are compiled twice: for every processor, and for those with AVX2 and FMA, which is looked up when they run. Both give
//! the same bits.

/// Defines a function whose body is compiled twice. In it `FUSED` says whether `mul_add` is one instruction.
macro_rules! compiled_twice {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $body:block) => {
        $(#[$doc])*
        fn $name($($arg: $ty),*) {
            #[inline(always)]
            fn either<const FUSED: bool>($($arg: $ty),*) $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn wide($($arg: $ty),*) {
                    either::<true>($($arg),*);
                }
                if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
                    // SAFETY: the processor has what the function is compiled for, which is all that it asks for.
                    #[expect(unsafe_code, reason = "there is no other way to call what is compiled for some processors")]
                    return unsafe { wide($($arg),*) };
                }
            }
            either::<false>($($arg),*);
        }
    };
}

pub(crate) use compiled_twice;

/// The sum of `sum` and a product. `exact` says that the product is a number of f32 whatever its factors are: then fusing changes
/// nothing.
#[inline(always)]
pub(crate) fn add_product<const FUSED: bool>(sum: f32, x: f32, y: f32, exact: bool) -> f32 {
    if FUSED && exact { x.mul_add(y, sum) } else { sum + x * y }
}
