//! Multiplies numbers of a roofline model by factors of a recorded run, for fits.

use serde_json::{Map, Value};

use vllm_sim_engine::latency::{Gpu, RooflineModelSetup};

/// Multiplies constants of the GPU and coefficients of the roofline model by `factors`. The key of
/// a factor is the JSON pointer of a constant or coefficient: `/gpu/gemm_fp8/memory`,
/// `/gpu/experts/fp4/1/compute`, `/coefficients/routing_share`.
///
/// # Errors
/// The error names the first entry that is not a number of the model, or whose factor is negative.
pub(super) fn scale_roofline(
    setup: &mut RooflineModelSetup,
    factors: &Map<String, Value>,
) -> Result<(), String> {
    let numbers = |setup: &RooflineModelSetup| -> Result<Value, serde_json::Error> {
        Ok(serde_json::json!({
            "gpu": serde_json::to_value(&setup.gpu)?,
            "coefficients": serde_json::to_value(setup.coefficients)?,
        }))
    };
    let mut numbers = numbers(setup).map_err(|error| error.to_string())?;
    for (pointer, factor) in factors {
        let field = numbers.pointer_mut(pointer);
        let scaled = field.as_ref().and_then(|field| Some(field.as_f64()? * factor.as_f64()?));
        match (field, scaled.filter(|scaled| *scaled >= 0.0)) {
            (Some(field), Some(scaled)) => *field = scaled.into(),
            _ => return Err(format!("has {pointer:?}: {factor}, must be a factor of a number")),
        }
    }
    let gpu: Gpu = serde_json::from_value(numbers["gpu"].take()).map_err(|e| e.to_string())?;
    setup.gpu = Gpu { name: setup.gpu.name, aliases: setup.gpu.aliases, ..gpu };
    setup.coefficients =
        serde_json::from_value(numbers["coefficients"].take()).map_err(|e| e.to_string())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use vllm_sim_engine::latency::{ModelShape, find_gpu, known_model_shape};

    use super::*;

    #[test]
    fn numbers_of_gpu_and_coefficients_are_scaled_by_pointer() {
        let shape: ModelShape = known_model_shape("meta-llama/Llama-3.1-8B").unwrap();
        let setup = RooflineModelSetup::new(shape, find_gpu("H100").unwrap().clone());
        let scaled = |factors: Value| {
            let mut setup = setup.clone();
            scale_roofline(&mut setup, factors.as_object().unwrap()).map(|()| setup)
        };
        assert_eq!(scaled(json!({})), Ok(setup.clone()));
        let twice = scaled(json!({"/gpu/all_reduce/1/4": 2, "/coefficients/step_us": 2})).unwrap();
        assert_eq!(twice.gpu.all_reduce[1][4], 2.0 * setup.gpu.all_reduce[1][4]);
        assert_eq!(twice.coefficients.step_us, 2.0 * setup.coefficients.step_us);
        for wrong in [json!({"/gpu/gemm": 2}), json!({"/gpu/gemm/memory": -1}), json!({"/x": 1})] {
            assert!(scaled(wrong.clone()).unwrap_err().contains("must be a factor"), "{wrong}");
        }
    }
}
