//! Models the time of a tensor-parallel all-reduce by message size.

/// Message sizes of the all-reduce measurements, in bytes.
const MESSAGE_SIZES_BYTES: [f64; 10] = [
    32.0 * 1024.0,
    128.0 * 1024.0,
    256.0 * 1024.0,
    512.0 * 1024.0,
    1024.0 * 1024.0,
    2048.0 * 1024.0,
    4096.0 * 1024.0,
    8192.0 * 1024.0,
    16384.0 * 1024.0,
    32768.0 * 1024.0,
];

/// All-reduce times inside a CUDA graph over 2, 4 and 8 GPUs, in us. Columns are message sizes from
/// 32 KiB to 32 MiB, see `MESSAGE_SIZES_BYTES`.
///
/// A fixed time plus a bandwidth does not fit: small messages take one exchange, larger ones two,
/// and NCCL's rings are used from 8 MiB.
pub type AllReduceTable = [AllReduceRow; 3];

pub(super) type AllReduceRow = [f64; MESSAGE_SIZES_BYTES.len()];

/// Returns the time of an all-reduce of `bytes`, in us, interpolated in the measured `row`.
pub(super) fn all_reduce_us(row: &AllReduceRow, bytes: f64) -> f64 {
    if bytes <= MESSAGE_SIZES_BYTES[0] {
        return row[0];
    }
    let inside = MESSAGE_SIZES_BYTES.iter().position(|end| bytes <= *end);
    let end = inside.unwrap_or(MESSAGE_SIZES_BYTES.len() - 1);
    let share = (bytes - MESSAGE_SIZES_BYTES[end - 1])
        / (MESSAGE_SIZES_BYTES[end] - MESSAGE_SIZES_BYTES[end - 1]);
    row[end - 1] + share * (row[end] - row[end - 1])
}

/// Estimates an all-reduce table from a fixed time in us and a bandwidth in GB/s over 2, 4 and 8
/// GPUs, where no measurements exist.
pub(super) const fn estimated_all_reduce_table(
    fixed_us_and_gb_per_sec: [(f64, f64); 3],
) -> AllReduceTable {
    let mut table = [[0.0; MESSAGE_SIZES_BYTES.len()]; 3];
    let mut row = 0;
    while row < fixed_us_and_gb_per_sec.len() {
        let mut point = 0;
        while point < MESSAGE_SIZES_BYTES.len() {
            let (fixed, gbs) = fixed_us_and_gb_per_sec[row];
            table[row][point] = fixed + MESSAGE_SIZES_BYTES[point] / (gbs * 1e3);
            point += 1;
        }
        row += 1;
    }
    table
}

/// Scales measured all-reduce times by a factor of 0.911 up to 1 MiB. Above, the factor rises with
/// the logarithm of the message size to 1.57 from 16 MiB on.
const fn scaled_to_servers(measured: AllReduceTable) -> AllReduceTable {
    const LAST_SMALL: usize = 4;
    const FIRST_LARGE: usize = 8;
    let mut table = measured;
    let mut row = 0;
    while row < table.len() {
        let mut point = 0;
        while point < MESSAGE_SIZES_BYTES.len() {
            let rise = match point {
                0..=LAST_SMALL => 0.0,
                FIRST_LARGE.. => 1.0,
                _ => (point - LAST_SMALL) as f64 / (FIRST_LARGE - LAST_SMALL) as f64,
            };
            table[row][point] *= 0.911 + rise * (1.57 - 0.911);
            point += 1;
        }
        row += 1;
    }
    table
}

pub(super) fn all_reduce_row_index(gpus: u32) -> usize {
    match gpus {
        0..=2 => 0,
        3..=4 => 1,
        _ => 2,
    }
}

// Rounded from the `custom_allreduce_perf` tables of ai-dynamo/aiconfigurator 0.12 (vLLM's own
// all-reduce in a CUDA graph).
pub(super) const H100_ALL_REDUCE: AllReduceTable = [
    [4.4, 4.8, 5.2, 6.3, 8.3, 12.4, 20.2, 45.0, 81.4, 156.3],
    [4.9, 5.8, 7.2, 11.4, 12.8, 18.6, 30.2, 53.5, 98.8, 173.7],
    [5.6, 7.9, 10.8, 12.0, 15.0, 19.4, 30.8, 50.7, 92.4, 177.8],
];
pub(super) const H200_ALL_REDUCE: AllReduceTable = [
    [4.6, 4.8, 5.2, 6.3, 8.4, 12.4, 20.5, 43.0, 76.6, 144.8],
    [4.9, 5.8, 7.0, 10.5, 12.1, 17.8, 29.8, 51.8, 93.8, 172.0],
    [5.7, 7.9, 10.1, 11.1, 14.1, 18.1, 28.4, 48.4, 87.2, 165.9],
];
/// Returns the all-reduce times of a GPU before vLLM 0.18. Over eight H100 or H200, these are the
/// slower times of the tables of vLLM 0.14 for messages of 256 KiB to 1 MiB.
pub(super) fn all_reduce_before_v0_18(mut table: AllReduceTable) -> AllReduceTable {
    if table == H100_ALL_REDUCE || table == H200_ALL_REDUCE {
        table[2][2..5].copy_from_slice(&[14.7, 15.6, 17.3]);
    }
    table
}

pub(super) const A100_ALL_REDUCE: AllReduceTable = [
    [5.2, 5.7, 6.6, 8.0, 10.7, 15.2, 25.2, 89.7, 126.3, 222.2],
    [6.0, 7.8, 9.9, 14.5, 18.3, 26.0, 41.5, 118.0, 182.5, 288.1],
    [6.9, 11.4, 17.1, 18.9, 21.7, 27.9, 45.4, 129.0, 214.2, 364.3],
];
pub(super) const L40S_ALL_REDUCE: AllReduceTable = [
    [7.4, 11.0, 18.1, 32.1, 60.2, 116.8, 229.4, 449.9, 891.9, 1776.9],
    [26.0, 59.6, 115.6, 219.0, 360.6, 840.8, 1648.7, 3321.8, 6676.2, 13598.0],
    [48.4, 108.3, 207.1, 444.5, 582.6, 2079.9, 4014.5, 8167.5, 15805.9, 30062.3],
];
pub(super) const RTX_PRO_6000_ALL_REDUCE: AllReduceTable = [
    [5.4, 8.2, 11.1, 17.6, 30.1, 55.7, 106.0, 244.5, 474.9, 933.0],
    [15.8, 25.0, 57.3, 76.5, 87.7, 145.8, 246.9, 462.0, 886.9, 1792.1],
    [29.8, 49.4, 84.3, 133.5, 133.5, 222.6, 346.9, 674.6, 1274.5, 2546.5],
];
/// All-reduce times of the B200 with vLLM's own kernels, in us. Over eight GPUs, the measured times
/// from 256 KiB to 1 MiB exceed the time at 1 MiB, and are lowered to that time.
const B200_MEASURED: AllReduceTable = [
    [7.0, 7.4, 7.7, 9.4, 13.1, 25.3, 33.7, 45.4, 57.4, 87.2],
    [7.4, 8.1, 8.6, 18.0, 18.4, 23.8, 30.0, 43.2, 68.0, 119.0],
    [8.2, 9.4, 17.2, 17.2, 17.2, 20.7, 26.3, 39.2, 63.2, 111.3],
];
/// All-reduce times of the B200 in servers, in us: fitted to InferenceX points of TP 2 to 8.
pub(super) const B200_ALL_REDUCE: AllReduceTable = scaled_to_servers(B200_MEASURED);
/// All-reduce times of TensorRT-LLM 1.3 on the B200, in us. vLLM has these kernels from FlashInfer
/// and fuses them with the norm (`fuse_allreduce_rms`).
const B200_TENSORRT: AllReduceTable = [
    [5.1, 5.1, 5.1, 5.4, 6.2, 8.0, 11.7, 21.3, 44.1, 86.8],
    [5.5, 5.4, 5.8, 7.1, 9.7, 14.5, 26.4, 46.4, 71.8, 122.6],
    [5.9, 6.2, 7.6, 10.7, 17.5, 30.1, 38.4, 54.6, 83.4, 145.7],
];
/// All-reduce times of the B200 with fused kernels, in us. Up to 4 MiB, they are the times of
/// TensorRT-LLM, multiplied by the factor for the norm.
pub(super) const B200_FUSED_ALL_REDUCE: AllReduceTable = {
    /// Factor for the time of the norm, which a fused kernel also computes; fitted to the same
    /// points.
    const WITH_NORM: f64 = 1.19;
    const FIRST_UNFUSED: usize = 7;
    let mut table = B200_ALL_REDUCE;
    let mut row = 0;
    while row < table.len() {
        let mut point = 0;
        while point < FIRST_UNFUSED {
            table[row][point] = B200_TENSORRT[row][point] * WITH_NORM;
            point += 1;
        }
        row += 1;
    }
    table
};
pub(super) const GB200_ALL_REDUCE: AllReduceTable = [
    [5.4, 5.8, 6.6, 8.0, 10.1, 15.2, 24.7, 62.2, 114.7, 216.7],
    [5.5, 6.0, 7.0, 11.1, 12.5, 17.6, 25.5, 50.6, 77.6, 113.4],
    B200_MEASURED[2],
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_reduce_time_is_linear_between_sizes() {
        let row = &H100_ALL_REDUCE[0];
        assert_eq!(all_reduce_us(row, 0.0), 4.4);
        assert_eq!(all_reduce_us(row, MESSAGE_SIZES_BYTES[4]), 8.3);
        let middle = (MESSAGE_SIZES_BYTES[8] + MESSAGE_SIZES_BYTES[9]) / 2.0;
        assert!((all_reduce_us(row, middle) - (81.4 + 156.3) / 2.0).abs() < 1e-9);
        // Beyond the last size the last bandwidth goes on.
        let twice = all_reduce_us(row, 2.0 * MESSAGE_SIZES_BYTES[9]);
        assert!((twice - (156.3 + 2.0 * (156.3 - 81.4))).abs() < 1e-9);
    }

    #[test]
    fn estimated_all_reduce_is_latency_plus_bandwidth() {
        let table = estimated_all_reduce_table([(5.0, 100.0), (6.0, 100.0), (7.0, 100.0)]);
        let mib = 1024.0 * 1024.0;
        assert!(
            (all_reduce_us(&table[all_reduce_row_index(2)], mib) - (5.0 + mib / 1e5)).abs() < 1e-9
        );
        assert_eq!(
            [
                all_reduce_row_index(1),
                all_reduce_row_index(3),
                all_reduce_row_index(4),
                all_reduce_row_index(16)
            ],
            [0, 1, 1, 2]
        );
    }
}
