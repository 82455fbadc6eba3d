//! Reads NumPy's `.npz` archives of float arrays: zip files of `.npy` members.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::DeflateDecoder;

use super::float_array::FloatArray;

const MAX_ENTRY_BYTES: u64 = 256 << 20;

/// Reads all arrays of an `.npz` archive, by their names without `.npy`.
///
/// # Errors
/// Returns a description of the problem.
pub(super) fn read_npz(bytes: &[u8]) -> Result<BTreeMap<String, FloatArray>, String> {
    let mut arrays = BTreeMap::new();
    let end = find_end_of_central_directory(bytes).ok_or("not a zip archive")?;
    let entries = u16_at(bytes, end + 10).ok_or("the zip directory is cut short")?;
    let mut at = u32_at(bytes, end + 16).ok_or("the zip directory is cut short")? as usize;
    let mut total = 0;
    for _ in 0..entries {
        let entry = ZipEntry::parse_at(bytes, at).ok_or("a zip directory entry is cut short")?;
        at = entry.next;
        total += entry.plain.max(entry.packed);
        if total > MAX_ENTRY_BYTES {
            return Err(format!("{}: larger than {MAX_ENTRY_BYTES} bytes", entry.name));
        }
        let data = entry.read_data(bytes)?;
        let name = entry.name.strip_suffix(".npy").unwrap_or(&entry.name);
        let array = parse_npy(&data).map_err(|e| format!("{name}: {e}"))?;
        arrays.insert(name.to_owned(), array);
    }
    Ok(arrays)
}

fn find_end_of_central_directory(bytes: &[u8]) -> Option<usize> {
    let last = bytes.len().checked_sub(22)?;
    (last.saturating_sub(0xFFFF)..=last).rev().find(|&at| bytes[at..].starts_with(b"PK\x05\x06"))
}

struct ZipEntry {
    name: String,
    method: u16,
    packed: u64,
    plain: u64,
    local: usize,
    next: usize,
}

impl ZipEntry {
    fn parse_at(bytes: &[u8], at: usize) -> Option<Self> {
        if !bytes.get(at..)?.starts_with(b"PK\x01\x02") {
            return None;
        }
        let name_len = usize::from(u16_at(bytes, at + 28)?);
        let extra_len = usize::from(u16_at(bytes, at + 30)?);
        let comment_len = usize::from(u16_at(bytes, at + 32)?);
        let name = bytes.get(at + 46..at + 46 + name_len)?;
        Some(Self {
            name: String::from_utf8_lossy(name).into_owned(),
            method: u16_at(bytes, at + 10)?,
            packed: u32_at(bytes, at + 20)?.into(),
            plain: u32_at(bytes, at + 24)?.into(),
            local: u32_at(bytes, at + 42)? as usize,
            next: at + 46 + name_len + extra_len + comment_len,
        })
    }

    fn read_data(&self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let short = || format!("{}: the archive is cut short", self.name);
        let name_len = usize::from(u16_at(bytes, self.local + 26).ok_or_else(short)?);
        let extra_len = usize::from(u16_at(bytes, self.local + 28).ok_or_else(short)?);
        let from = self.local + 30 + name_len + extra_len;
        let packed = bytes.get(from..from + self.packed as usize).ok_or_else(short)?;
        match self.method {
            0 => Ok(packed.to_vec()),
            8 => {
                let mut data = Vec::new();
                DeflateDecoder::new(packed)
                    .take(self.plain)
                    .read_to_end(&mut data)
                    .map_err(|e| format!("{}: {e}", self.name))?;
                Ok(data)
            }
            other => Err(format!("{}: zip method {other} is not supported", self.name)),
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn parse_npy(bytes: &[u8]) -> Result<FloatArray, String> {
    let rest = bytes.strip_prefix(b"\x93NUMPY").ok_or("not a .npy array")?;
    let (header_len, start) = match rest.first() {
        Some(1) => (u16_at(rest, 2).map(usize::from), 4),
        Some(2 | 3) => (u32_at(rest, 2).map(|n| n as usize), 6),
        _ => return Err("unknown .npy version".to_owned()),
    };
    let header_len = header_len.ok_or("the header is cut short")?;
    let header = rest.get(start..start + header_len).ok_or("the header is cut short")?;
    let header = String::from_utf8_lossy(header);
    let value = |key: &str| {
        let after = &header[header.find(&format!("'{key}'"))? + key.len() + 2..];
        Some(after.trim_start_matches([':', ' ']))
    };
    let shape: Vec<usize> = value("shape")
        .and_then(|s| s.strip_prefix('(')?.split_once(')'))
        .ok_or("the header has no shape")?
        .0
        .split(',')
        .map(str::trim)
        .filter(|s| !s.is_empty())
        .map(|s| s.parse().map_err(|_| format!("bad shape entry {s:?}")))
        .collect::<Result<_, _>>()?;
    if value("fortran_order").is_some_and(|v| v.starts_with("True")) && shape.len() > 1 {
        return Err("Fortran order is not supported".to_owned());
    }
    let kind = value("descr").ok_or("the header has no descr")?;
    let data = &rest[start + header_len..];
    let values = decode_numbers(kind, data)?;
    let count = shape.iter().try_fold(1usize, |n, &len| n.checked_mul(len));
    if count != Some(values.len()) {
        return Err(format!("shape {shape:?} does not match {} numbers", values.len()));
    }
    Ok(FloatArray { shape, values })
}

fn decode_numbers(kind: &str, data: &[u8]) -> Result<Vec<f64>, String> {
    let kind = kind.trim_start_matches('\'').split('\'').next().unwrap_or_default();
    let (eight, rest) = data.as_chunks::<8>();
    let (four, rest4) = data.as_chunks::<4>();
    let values = match kind {
        "<f8" if rest.is_empty() => eight.iter().map(|b| f64::from_le_bytes(*b)).collect(),
        "<i8" if rest.is_empty() => eight.iter().map(|b| i64::from_le_bytes(*b) as f64).collect(),
        "<f4" if rest4.is_empty() => four.iter().map(|b| f32::from_le_bytes(*b).into()).collect(),
        "<i4" if rest4.is_empty() => four.iter().map(|b| i32::from_le_bytes(*b).into()).collect(),
        "<f8" | "<i8" | "<f4" | "<i4" => return Err("the data is cut short".to_owned()),
        other => return Err(format!("numbers of kind {other:?} are not supported")),
    };
    Ok(values)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Writes an `.npz` as `numpy.savez` does (members stored without compression or checksums).
    pub(in crate::latency) fn write_npz(arrays: &[(&str, &[usize], &[f64])]) -> Vec<u8> {
        let (mut file, mut directory) = (Vec::new(), Vec::new());
        for (name, shape, values) in arrays {
            let dims: String = shape.iter().map(|n| format!("{n}, ")).collect();
            let mut header =
                format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({dims}), }}");
            header += &" ".repeat(63 - (header.len() + 10) % 64);
            header.push('\n');
            let mut npy = b"\x93NUMPY\x01\x00".to_vec();
            npy.extend((header.len() as u16).to_le_bytes());
            npy.extend(header.as_bytes());
            npy.extend(values.iter().flat_map(|v| v.to_le_bytes()));
            let name = format!("{name}.npy");
            let at = file.len() as u32;
            let size = (npy.len() as u32).to_le_bytes();
            file.extend(b"PK\x03\x04");
            file.extend([0; 14]);
            file.extend([size, size].concat());
            file.extend((name.len() as u16).to_le_bytes());
            file.extend([0; 2]);
            file.extend(name.as_bytes());
            file.extend(&npy);
            directory.extend(b"PK\x01\x02");
            directory.extend([0; 16]);
            directory.extend([size, size].concat());
            directory.extend((name.len() as u16).to_le_bytes());
            directory.extend([0; 12]);
            directory.extend(at.to_le_bytes());
            directory.extend(name.as_bytes());
        }
        let at = file.len() as u32;
        file.extend(&directory);
        file.extend(b"PK\x05\x06");
        file.extend([0; 6]);
        file.extend((arrays.len() as u16).to_le_bytes());
        file.extend((directory.len() as u32).to_le_bytes());
        file.extend(at.to_le_bytes());
        file.extend([0; 2]);
        file
    }

    #[test]
    fn arrays_survive_a_round_trip() {
        let file = write_npz(&[("a", &[2, 2], &[1.0, 2.0, 3.0, 4.5]), ("b", &[1], &[7.0])]);
        let arrays = read_npz(&file).unwrap();
        assert_eq!(arrays["a"], FloatArray { shape: vec![2, 2], values: vec![1.0, 2.0, 3.0, 4.5] });
        assert_eq!(arrays["b"].values, [7.0]);
    }

    #[test]
    fn broken_archives_are_errors() {
        let file = write_npz(&[("a", &[2], &[1.0, 2.0])]);
        for cut in 0..file.len() {
            assert!(read_npz(&file[..cut]).is_err(), "cut at {cut}");
        }
    }
}
