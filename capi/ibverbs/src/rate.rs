//! Rates: the codes of the address vector, multiples of 2.5 Gbit/s, and Mbit/s
//! (ibv_rate_to_mult(3), ibv_rate_to_mbps(3)).

use std::ffi::c_int;

const IBV_RATE_MAX: c_int = 0;

struct Rate {
    code: c_int,
    /// Of 2.5 Gbit/s (of the nominal rate, where that is such a multiple), if it is one.
    mult: Option<c_int>,
    /// What the lanes carry, with 64b/66b coding taken into account from FDR on.
    mbps: c_int,
}

const fn rate(code: c_int, mult: c_int, mbps: c_int) -> Rate {
    Rate { code, mult: if mult == 0 { None } else { Some(mult) }, mbps }
}

const RATES: [Rate; 23] = [
    rate(2, 1, 2_500),
    rate(3, 4, 10_000),
    rate(4, 12, 30_000),
    rate(5, 2, 5_000),
    rate(6, 8, 20_000),
    rate(7, 16, 40_000),
    rate(8, 24, 60_000),
    rate(9, 32, 80_000),
    rate(10, 48, 120_000),
    rate(11, 0, 14_062),
    rate(12, 0, 56_250),
    rate(13, 0, 112_500),
    rate(14, 0, 168_750),
    rate(15, 0, 25_781),
    rate(16, 0, 103_125),
    rate(17, 0, 206_250),
    rate(18, 0, 309_375),
    rate(19, 11, 28_125),
    rate(20, 20, 53_125),
    rate(21, 160, 425_000),
    rate(22, 240, 637_500),
    rate(23, 320, 850_000),
    rate(24, 480, 1_275_000),
];

/// ibv_rate_to_mult(3): -1 when the rate is no multiple.
pub(crate) extern "C" fn rate_to_mult(code: c_int) -> c_int {
    RATES.iter().find(|r| r.code == code).and_then(|r| r.mult).unwrap_or(-1)
}

/// mult_to_ibv_rate(3): IBV_RATE_MAX when no rate has that multiple.
pub(crate) extern "C" fn mult_to_rate(mult: c_int) -> c_int {
    RATES.iter().find(|r| r.mult == Some(mult)).map_or(IBV_RATE_MAX, |r| r.code)
}

/// ibv_rate_to_mbps(3): -1 when there is no such rate.
pub(crate) extern "C" fn rate_to_mbps(code: c_int) -> c_int {
    RATES.iter().find(|r| r.code == code).map_or(-1, |r| r.mbps)
}

/// mbps_to_ibv_rate(3): IBV_RATE_MAX when no rate is exactly that.
pub(crate) extern "C" fn mbps_to_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|r| r.mbps == mbps).map_or(IBV_RATE_MAX, |r| r.code)
}
