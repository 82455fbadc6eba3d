/// NumPy array of floats in row-major order, with its shape.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FloatArray {
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
}
