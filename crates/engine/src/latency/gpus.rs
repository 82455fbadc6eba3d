mod efficiency;
mod versions;
use super::all_reduce::{self, AllReduceTable};
use super::all2all::InterconnectFabric;
pub(super) use efficiency::KernelEfficiency;
use efficiency::{
    BLACKWELL_EXPERT_EFFICIENCY, DEFAULT_EXPERT_EFFICIENCY, ExpertKernelEfficiency,
    NVLINK_ALL_REDUCE, PCIE_ALL_REDUCE, kernel_efficiency, with_hopper_mxfp4_efficiency,
};
use versions::HOPPER_BF16_FACTOR_BEFORE_V0_20;

/// Describes a GPU: limits from its data sheet, and the efficiency of its kernels.
///
/// Efficiencies are fits of public kernel tables (ai-dynamo/aiconfigurator) with global scales from
/// server runs. Those of fp8 and fp4 are from tables of vLLM 0.24 (matrices of 1024 to 65536
/// outputs, up to 8192 rows; logarithms, soft L1). Hopper and data-center Blackwell have scales per
/// generation, fitted to the InferenceX points of computed prompts; experts on B300 have the
/// efficiencies of B200. GPUs without a fit use `FALLBACK_GPU`.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Gpu {
    /// Canonical name of the GPU, as accepted by `--gpu`.
    #[serde(skip)]
    pub name: &'static str,
    /// Other names of the GPU, compared without case, spaces and punctuation.
    #[serde(skip)]
    pub aliases: &'static [&'static str],
    /// Peak of dense bf16 arithmetic, in TFLOP/s.
    pub bf16_tflops: f64,
    /// Peak of dense fp8 arithmetic, in TFLOP/s; 0 without fp8 units.
    pub fp8_tflops: f64,
    /// Peak of dense fp4 arithmetic, in TFLOP/s; 0 without fp4 units.
    pub fp4_tflops: f64,
    /// Bandwidth of GPU memory, in TB/s.
    pub bandwidth_tbs: f64,
    /// GPU memory visible to the engine, in GiB.
    pub memory_gib: f64,
    /// Efficiency of matrix products in bf16.
    pub gemm: KernelEfficiency,
    /// Efficiency of matrix products with fp8 weights and activations.
    pub gemm_fp8: KernelEfficiency,
    /// Factor of the modelled memory time of fp8 products with more than 16 rows.
    pub fp8_memory_factor_above_16_rows: f64,
    /// Efficiency of matrix products with fp8 weights scaled per block.
    pub gemm_fp8_block: KernelEfficiency,
    /// Efficiency of matrix products with fp4 weights and activations.
    pub gemm_fp4: KernelEfficiency,
    /// Efficiency of decode attention: launch time in us, and reached fraction of the memory
    /// bandwidth.
    pub decode_attention: (f64, f64),
    /// Factor of the bandwidth of decode attention with an fp8 KV cache. According to the kernel
    /// tables of vLLM 0.24, Hopper converts the cache while it is read, and data-center Blackwell
    /// does not.
    pub fp8_cache_bandwidth: f64,
    /// Efficiency of prefill attention: launch time in us, and reached fraction of the arithmetic
    /// peak.
    pub prefill_attention: (f64, f64),
    /// Times per layer of large steps with a prompt chunk, in us: the time added to their kernels,
    /// and the minimum time to launch the kernels if the step is larger than every CUDA graph.
    /// Fitted to InferenceX points of Hopper and data-center Blackwell GPUs. Other GPUs have the
    /// values of Hopper.
    pub eager_prefill_us: (f64, f64),
    /// Minimum time per layer to launch the kernels of a large step with a prompt chunk, for models
    /// with experts, in us: with fp4 weights, and with other weights. Fitted to InferenceX points
    /// of MiniMax M2.5.
    pub eager_experts_us: [f64; 2],
    /// Times of an all-reduce over 2, 4 and 8 GPUs of this type, in us.
    pub all_reduce: AllReduceTable,
    /// Times of an all-reduce that is fused with the following norm, in us. vLLM fuses none with
    /// MXFP4 experts; GPUs without a table have no faster kernels.
    pub fused_all_reduce: Option<AllReduceTable>,
    /// Major version of the flash-attention kernels that vLLM uses on the GPU. In steps with a
    /// prompt chunk, version 2 reads the KV cache once per query head, later versions once per
    /// group of heads. 0: none; kernels are Triton's (Volta, Turing) or AMD's.
    pub flash_attention: u32,
    /// Time of an MoE router (gate) that computes in fp32 without tensor cores: (us for 64 tokens,
    /// TFLOP/s in large steps); (0, 0) with vLLM's special kernels.
    pub fp32_router: (f64, f64),
    /// Time per layer in which an expert-parallel rank waits for the slowest rank, in us. Fitted to
    /// five InferenceX points of two ranks on B300.
    pub expert_wait_us: f64,
    /// Efficiency of the fused mixture-of-experts kernels.
    pub experts: ExpertKernelEfficiency,
}

const FALLBACK_GPU: Gpu = Gpu {
    name: "",
    aliases: &[],
    bf16_tflops: 0.0,
    fp8_tflops: 0.0,
    fp4_tflops: 0.0,
    bandwidth_tbs: 0.0,
    memory_gib: 0.0,
    gemm: kernel_efficiency(4.5, 0.80, 0.55),
    gemm_fp8: kernel_efficiency(14.0, 0.75, 0.30),
    fp8_memory_factor_above_16_rows: 1.0,
    gemm_fp8_block: kernel_efficiency(30.0, 0.60, 0.30),
    // Unused without fp4 units.
    gemm_fp4: kernel_efficiency(8.2, 0.746, 0.415),
    decode_attention: (14.0, 0.82),
    fp8_cache_bandwidth: 0.9,
    prefill_attention: (20.0, 0.45),
    eager_prefill_us: (46.0, 100.0),
    eager_experts_us: [750.0, 750.0],
    all_reduce: NVLINK_ALL_REDUCE,
    fused_all_reduce: None,
    flash_attention: 3,
    fp32_router: (0.0, 0.0),
    expert_wait_us: 9.0,
    experts: DEFAULT_EXPERT_EFFICIENCY,
};

const fn gpu_from_data_sheet(
    name: &'static str,
    aliases: &'static [&'static str],
    (bf16_tflops, fp8_tflops): (f64, f64),
    bandwidth_tbs: f64,
    memory_gib: f64,
) -> Gpu {
    Gpu { name, aliases, bf16_tflops, fp8_tflops, bandwidth_tbs, memory_gib, ..FALLBACK_GPU }
}

const H100: Gpu = Gpu {
    gemm: kernel_efficiency(3.9, 0.933, 0.76),
    experts: with_hopper_mxfp4_efficiency(DEFAULT_EXPERT_EFFICIENCY),
    gemm_fp8: kernel_efficiency(7.8, 0.909, 0.538),
    gemm_fp8_block: kernel_efficiency(29.8, 0.73, 0.29),
    decode_attention: (13.0, 0.934),
    prefill_attention: (22.4, 0.523),
    all_reduce: all_reduce::H100_ALL_REDUCE,
    ..gpu_from_data_sheet(
        "H100-SXM-80GB",
        &["H100", "H100-SXM", "H100-SXM5", "H100-80GB", "H100-80GB-HBM3", "H100-SXM5-80GB"],
        (989.5, 1979.0),
        3.35,
        79.2,
    )
};

const H200: Gpu = Gpu {
    gemm: kernel_efficiency(4.2, 0.865, 0.572 / HOPPER_BF16_FACTOR_BEFORE_V0_20),
    gemm_fp8: kernel_efficiency(8.6, 0.96, 0.575),
    gemm_fp8_block: kernel_efficiency(32.7, 0.56, 0.31),
    decode_attention: (14.6, 0.882),
    prefill_attention: (22.7, 0.544),
    all_reduce: all_reduce::H200_ALL_REDUCE,
    experts: with_hopper_mxfp4_efficiency(ExpertKernelEfficiency {
        fp8: [kernel_efficiency(40.0, 0.90, 0.45), kernel_efficiency(59.0, 0.54, 0.109)],
        fp8_block: [kernel_efficiency(34.9, 0.777, 0.182), kernel_efficiency(31.1, 0.869, 0.108)],
        int4: [kernel_efficiency(30.5, 0.731, 0.224), kernel_efficiency(39.7, 0.659, 0.146)],
        ..DEFAULT_EXPERT_EFFICIENCY
    }),
    ..gpu_from_data_sheet(
        "H200-SXM-141GB",
        &["H200", "H200-SXM", "H200-141GB"],
        (989.5, 1979.0),
        4.8,
        139.8,
    )
};

const A100: Gpu = Gpu {
    gemm: kernel_efficiency(6.2, 0.766, 0.518),
    decode_attention: (26.3, 0.838),
    prefill_attention: (23.2, 0.467),
    all_reduce: all_reduce::A100_ALL_REDUCE,
    flash_attention: 2,
    ..gpu_from_data_sheet(
        "A100-SXM-80GB",
        &["A100", "A100-80GB", "A100-SXM", "A100-SXM4-80GB", "A100-SXM4"],
        (312.0, 0.0),
        2.039,
        79.15,
    )
};

const L40S: Gpu = Gpu {
    gemm: kernel_efficiency(0.0, 0.808, 0.501),
    gemm_fp8: kernel_efficiency(3.0, 0.701, 0.419),
    decode_attention: (13.2, 0.899),
    prefill_attention: (12.8, 0.408),
    all_reduce: PCIE_ALL_REDUCE,
    flash_attention: 2,
    ..gpu_from_data_sheet("L40S-48GB", &["L40S"], (362.0, 733.0), 0.864, 44.4)
};

const B200: Gpu = Gpu {
    gemm: kernel_efficiency(3.8, 0.813, 0.560),
    fp4_tflops: 9000.0,
    gemm_fp8: kernel_efficiency(5.8, 0.703, 0.461),
    gemm_fp4: kernel_efficiency(8.2, 0.649, 0.380),
    gemm_fp8_block: kernel_efficiency(11.4, 0.53, 0.35),
    decode_attention: (4.7, 0.915),
    fp8_cache_bandwidth: 1.0,
    prefill_attention: (17.3, 0.532),
    eager_prefill_us: (220.0, 100.0),
    eager_experts_us: [970.0, 480.0],
    all_reduce: all_reduce::B200_ALL_REDUCE,
    fused_all_reduce: Some(all_reduce::B200_FUSED_ALL_REDUCE),
    experts: BLACKWELL_EXPERT_EFFICIENCY,
    ..gpu_from_data_sheet("B200-SXM-180GB", &["B200", "B200-SXM"], (2250.0, 4500.0), 8.0, 178.0)
};

/// Built-in descriptions of GPUs, by which `--gpu` is looked up.
pub const KNOWN_GPUS: &[Gpu] = &[
    H100,
    H200,
    A100,
    L40S,
    B200,
    Gpu {
        name: "A100-SXM-40GB",
        aliases: &["A100-40GB", "A100-SXM4-40GB"],
        bandwidth_tbs: 1.555,
        memory_gib: 39.4,
        ..A100
    },
    Gpu {
        name: "A100-PCIe-80GB",
        aliases: &["A100-PCIe", "A100-80GB-PCIe"],
        bandwidth_tbs: 1.935,
        memory_gib: 79.15,
        all_reduce: PCIE_ALL_REDUCE,
        ..A100
    },
    Gpu {
        name: "H100-PCIe-80GB",
        aliases: &["H100-PCIe"],
        bf16_tflops: 756.0,
        fp8_tflops: 1513.0,
        bandwidth_tbs: 2.0,
        all_reduce: PCIE_ALL_REDUCE,
        ..H100
    },
    Gpu {
        name: "H100-NVL-94GB",
        aliases: &["H100-NVL"],
        bf16_tflops: 835.5,
        fp8_tflops: 1671.0,
        bandwidth_tbs: 3.9,
        memory_gib: 93.1,
        ..H100
    },
    Gpu { name: "GH200-96GB", aliases: &["GH200"], bandwidth_tbs: 4.0, memory_gib: 94.5, ..H100 },
    Gpu { name: "GH200-144GB", aliases: &[], bandwidth_tbs: 4.9, memory_gib: 141.0, ..H200 },
    Gpu {
        name: "RTX-PRO-6000-96GB",
        aliases: &["RTX-PRO-6000", "RTX-PRO-6000-Blackwell", "RTX-PRO-6000-Server"],
        bf16_tflops: 503.8,
        fp8_tflops: 1007.6,
        bandwidth_tbs: 1.792,
        memory_gib: 94.97,
        fp4_tflops: 2015.2,
        gemm_fp8: kernel_efficiency(5.9, 0.813, 0.632),
        gemm_fp4: kernel_efficiency(10.7, 0.705, 0.606),
        all_reduce: all_reduce::RTX_PRO_6000_ALL_REDUCE,
        experts: ExpertKernelEfficiency {
            fp8: [kernel_efficiency(23.4, 0.757, 0.265), kernel_efficiency(33.0, 0.890, 0.179)],
            fp4: [kernel_efficiency(39.0, 0.767, 0.410), kernel_efficiency(61.6, 0.813, 0.212)],
            ..DEFAULT_EXPERT_EFFICIENCY
        },
        ..L40S
    },
    Gpu { name: "L40-48GB", aliases: &["L40"], bf16_tflops: 181.0, fp8_tflops: 362.0, ..L40S },
    Gpu {
        name: "RTX-6000-Ada-48GB",
        aliases: &["RTX-6000-Ada", "RTX6000"],
        bandwidth_tbs: 0.96,
        memory_gib: 47.4,
        ..L40S
    },
    Gpu {
        name: "L4-24GB",
        aliases: &["L4"],
        bf16_tflops: 121.0,
        fp8_tflops: 242.0,
        bandwidth_tbs: 0.3,
        memory_gib: 22.0,
        ..L40S
    },
    Gpu {
        name: "RTX-4090-24GB",
        aliases: &["RTX-4090", "4090"],
        bf16_tflops: 165.2,
        fp8_tflops: 330.3,
        bandwidth_tbs: 1.008,
        memory_gib: 23.6,
        ..L40S
    },
    Gpu {
        name: "RTX-5090-32GB",
        aliases: &["RTX-5090", "5090"],
        bf16_tflops: 209.5,
        fp8_tflops: 419.0,
        fp4_tflops: 838.0,
        gemm_fp4: kernel_efficiency(10.7, 0.705, 0.606),
        bandwidth_tbs: 1.792,
        memory_gib: 31.4,
        ..L40S
    },
    Gpu {
        name: "B300-SXM-288GB",
        aliases: &["B300"],
        memory_gib: 268.0,
        fp4_tflops: 14_000.0,
        gemm_fp8: kernel_efficiency(5.2, 0.711, 0.479),
        gemm_fp4: kernel_efficiency(7.6, 0.686, 0.264),
        ..B200
    },
    Gpu {
        name: "GB200-186GB",
        aliases: &["GB200"],
        bf16_tflops: 2500.0,
        fp8_tflops: 5000.0,
        fp4_tflops: 10_000.0,
        gemm_fp8: kernel_efficiency(5.7, 0.743, 0.435),
        gemm_fp4: kernel_efficiency(8.6, 0.766, 0.366),
        memory_gib: 184.0,
        all_reduce: all_reduce::GB200_ALL_REDUCE,
        ..B200
    },
    Gpu {
        name: "GB300-288GB",
        aliases: &["GB300"],
        bf16_tflops: 2500.0,
        fp8_tflops: 5000.0,
        fp4_tflops: 15_000.0,
        gemm_fp8: kernel_efficiency(5.6, 0.742, 0.460),
        gemm_fp4: kernel_efficiency(8.6, 0.763, 0.270),
        experts: ExpertKernelEfficiency {
            fp4: [kernel_efficiency(25.4, 0.809, 0.166), kernel_efficiency(30.3, 0.911, 0.096)],
            ..BLACKWELL_EXPERT_EFFICIENCY
        },
        memory_gib: 276.0,
        all_reduce: all_reduce::GB200_ALL_REDUCE,
        ..B200
    },
    Gpu {
        flash_attention: 0,
        ..gpu_from_data_sheet("MI300X-192GB", &["MI300X", "MI300"], (1307.0, 2615.0), 5.3, 191.0)
    },
    Gpu {
        flash_attention: 0,
        ..gpu_from_data_sheet("MI325X-256GB", &["MI325X"], (1307.0, 2615.0), 6.0, 255.0)
    },
    Gpu {
        flash_attention: 0,
        ..gpu_from_data_sheet("MI355X-288GB", &["MI355X"], (2516.0, 5033.0), 8.0, 287.0)
    },
    gpu_from_data_sheet("H20-96GB", &["H20"], (148.0, 296.0), 4.0, 94.9),
    Gpu {
        flash_attention: 2,
        all_reduce: PCIE_ALL_REDUCE,
        ..gpu_from_data_sheet("A30-24GB", &["A30"], (165.0, 0.0), 0.933, 23.5)
    },
    Gpu {
        flash_attention: 2,
        all_reduce: PCIE_ALL_REDUCE,
        ..gpu_from_data_sheet("A10-24GB", &["A10", "A10G"], (125.0, 0.0), 0.6, 22.0)
    },
    Gpu {
        flash_attention: 2,
        all_reduce: PCIE_ALL_REDUCE,
        ..gpu_from_data_sheet("A40-48GB", &["A40"], (149.7, 0.0), 0.696, 44.4)
    },
    Gpu {
        flash_attention: 2,
        all_reduce: PCIE_ALL_REDUCE,
        ..gpu_from_data_sheet("A6000-48GB", &["A6000", "RTX-A6000"], (154.8, 0.0), 0.768, 47.4)
    },
    Gpu {
        flash_attention: 0,
        ..gpu_from_data_sheet("V100-SXM-32GB", &["V100", "V100-32GB"], (125.0, 0.0), 0.9, 31.7)
    },
    Gpu {
        flash_attention: 0,
        all_reduce: PCIE_ALL_REDUCE,
        ..gpu_from_data_sheet("T4-16GB", &["T4", "Tesla-T4"], (65.0, 0.0), 0.32, 14.6)
    },
    Gpu {
        flash_attention: 2,
        all_reduce: PCIE_ALL_REDUCE,
        ..gpu_from_data_sheet("RTX-3090-24GB", &["RTX-3090", "3090"], (71.0, 0.0), 0.936, 23.5)
    },
];

impl Gpu {
    /// Returns whether the GPU is AMD's, which Kubernetes counts by another name than NVIDIA's.
    pub fn is_amd(&self) -> bool {
        self.name.starts_with("MI")
    }

    /// Returns whether the GPU is a data-center Blackwell (compute capability 10).
    pub fn is_data_center_blackwell(&self) -> bool {
        ["B200", "B300", "GB200", "GB300"].iter().any(|name| self.name.starts_with(name))
    }

    /// Returns whether the compute capability of an NVIDIA GPU is below 7.5.
    pub fn is_older_than_turing(&self) -> bool {
        self.name.starts_with("V100")
    }

    fn is_hopper(&self) -> bool {
        self.flash_attention == 3 && !self.is_data_center_blackwell()
    }

    /// Returns the network between GPUs of this type, with the rates of expert-parallel kernels in
    /// that network. The rates for GPUs other than H100, H200 and B200 are assumed.
    pub(super) fn interconnect_fabric(&self) -> InterconnectFabric {
        let is_rack = ["GB200", "GB300"].iter().any(|name| self.name.starts_with(name));
        InterconnectFabric {
            gpus_per_node: if is_rack { 72 } else { 8 },
            kernel_gbs: match self.is_data_center_blackwell() {
                true => (260.0, 181.0),
                false => (155.0, 280.0),
            },
        }
    }
}

/// Finds a GPU by name: `H100`, `h100-sxm-80gb`, `NVIDIA H100 80GB HBM3`, `b200_sxm`.
pub fn find_gpu(name: &str) -> Option<&'static Gpu> {
    gpu_by_exact_name(name).or_else(|| gpu_by_exact_name(name.split_once("_sxm")?.0))
}

fn gpu_by_exact_name(name: &str) -> Option<&'static Gpu> {
    let wanted = normalized_gpu_name(name);
    KNOWN_GPUS.iter().find(|gpu| {
        std::iter::once(&gpu.name)
            .chain(gpu.aliases)
            .any(|known| normalized_gpu_name(known) == wanted)
    })
}

fn normalized_gpu_name(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let lower = lower
        .replace("nvidia", "")
        .replace("geforce", "")
        .replace("amd", "")
        .replace("instinct", "");
    lower.chars().filter(char::is_ascii_alphanumeric).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_is_found_by_any_of_its_names() {
        for name in ["H100", "h100-sxm-80gb", "NVIDIA H100 80GB HBM3", "H100_SXM"] {
            assert_eq!(find_gpu(name).map(|g| g.name), Some("H100-SXM-80GB"), "{name}");
        }
        assert_eq!(find_gpu("NVIDIA A100-SXM4-80GB").map(|g| g.name), Some("A100-SXM-80GB"));
        // The name in NVIDIA's kernel tables.
        assert_eq!(find_gpu("rtx_pro_6000_server").map(|g| g.name), Some("RTX-PRO-6000-96GB"));
        assert_eq!(find_gpu("Cray-1"), None);
    }

    #[test]
    fn only_hopper_and_newer_have_flash_attention_3() {
        let generation = |name| find_gpu(name).unwrap().flash_attention;
        for name in ["A100", "A10", "A30", "A40", "A6000", "RTX-3090", "L4", "L40S", "RTX-5090"] {
            assert_eq!(generation(name), 2, "{name}");
        }
        for name in ["V100", "T4", "MI300X"] {
            assert_eq!(generation(name), 0, "{name}");
        }
        assert_eq!((generation("H20"), generation("GH200")), (3, 3));
    }

    #[test]
    fn instinct_gpus_are_those_of_amd() {
        let of_amd = KNOWN_GPUS.iter().filter(|gpu| gpu.is_amd()).map(|gpu| gpu.name);
        assert_eq!(of_amd.collect::<Vec<_>>(), ["MI300X-192GB", "MI325X-256GB", "MI355X-288GB"]);
        assert!(find_gpu("AMD Instinct MI300X").is_some_and(Gpu::is_amd));
    }

    #[test]
    fn no_two_gpus_share_a_name() {
        let mut names: Vec<_> = KNOWN_GPUS
            .iter()
            .flat_map(|g| std::iter::once(&g.name).chain(g.aliases))
            .map(|name| normalized_gpu_name(name))
            .collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
