//! Reads the subset of Parquet that AIConfigurator's kernel tables use: flat columns of strings,
//! integers and floats, data pages v1, plain or dictionary values, ZSTD or SNAPPY.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::Arc;

#[derive(Clone)]
enum ParquetCell {
    Text(Arc<str>),
    Whole(i64),
    Float(f64),
}

type ParquetColumn = Vec<Option<ParquetCell>>;

pub(super) struct ParquetTable {
    pub(super) rows: usize,
    columns: BTreeMap<String, ParquetColumn>,
}

pub(super) type ParquetProblem = &'static str;

const TRUNCATED: ParquetProblem = "is cut off";
const UNSUPPORTED: ParquetProblem = "uses a Parquet feature that is not supported";

/// Maximum number of rows per Parquet table. Protects memory, since a few bytes can encode many
/// equal values.
const MAX_ROWS: usize = 1 << 22;

impl ParquetTable {
    pub(super) fn parse_parquet_file(file: &[u8]) -> Result<Self, ParquetProblem> {
        let end = file.len().checked_sub(8).ok_or(TRUNCATED)?;
        if !file.starts_with(b"PAR1") || !file.ends_with(b"PAR1") {
            return Err("is not a Parquet file");
        }
        let length =
            u32::from_le_bytes(file[end..end + 4].try_into().map_err(|_| TRUNCATED)?) as usize;
        let footer = file.get(end.checked_sub(length).ok_or(TRUNCATED)?..end).ok_or(TRUNCATED)?;
        let meta = ThriftReader { bytes: footer, depth: 0 }.read_struct()?;
        let rows = usize::try_from(meta.integer_field(3)?).map_err(|_| UNSUPPORTED)?;
        let mut optional = BTreeMap::new();
        for element in meta.list_field(2)?.iter().skip(1) {
            let element = element.as_struct()?;
            optional.insert(element.text_field(4)?, element.integer_field(3).unwrap_or(0) == 1);
        }
        let mut columns: BTreeMap<String, ParquetColumn> = BTreeMap::new();
        for group in meta.list_field(4)? {
            for chunk in group.as_struct()?.list_field(1)? {
                let chunk = chunk.as_struct()?.struct_field(3)?;
                let [ThriftField::Bytes(name)] = chunk.list_field(3)? else {
                    return Err(UNSUPPORTED);
                };
                let name = String::from_utf8_lossy(name).into_owned();
                let optional = *optional.get(&name).ok_or(UNSUPPORTED)?;
                columns.entry(name).or_default().extend(read_column(file, chunk, optional)?);
            }
        }
        let table = Self { rows, columns };
        match table.columns.values().all(|column| column.len() == rows) {
            true => Ok(table),
            false => Err(TRUNCATED),
        }
    }

    fn cell(&self, column: &str, row: usize) -> Option<&ParquetCell> {
        self.columns.get(column)?[row].as_ref()
    }

    pub(super) fn text_cell(&self, column: &str, row: usize) -> Option<&str> {
        match self.cell(column, row)? {
            ParquetCell::Text(text) => Some(text),
            ParquetCell::Whole(_) | ParquetCell::Float(_) => None,
        }
    }

    pub(super) fn integer_cell(&self, column: &str, row: usize) -> Option<i64> {
        match self.cell(column, row)? {
            ParquetCell::Whole(number) => Some(*number),
            ParquetCell::Float(number) => Some(*number as i64),
            ParquetCell::Text(_) => None,
        }
    }

    pub(super) fn float_cell(&self, column: &str, row: usize) -> Option<f64> {
        match self.cell(column, row)? {
            ParquetCell::Whole(number) => Some(*number as f64),
            ParquetCell::Float(number) => Some(*number),
            ParquetCell::Text(_) => None,
        }
    }
}

fn read_column(
    file: &[u8],
    chunk: &ThriftStruct,
    optional: bool,
) -> Result<ParquetColumn, ParquetProblem> {
    let (kind, codec) = (chunk.integer_field(1)?, chunk.integer_field(4)?);
    let start = chunk.integer_field(11).or_else(|_| chunk.integer_field(9))?;
    let start = usize::try_from(start).map_err(|_| UNSUPPORTED)?;
    let mut left = file.get(start..).ok_or(TRUNCATED)?;
    let wanted = usize::try_from(chunk.integer_field(5)?).map_err(|_| UNSUPPORTED)?;
    if !matches!(kind, 2 | 5 | 6) {
        return Err(UNSUPPORTED);
    }
    let mut values = ParquetColumn::new();
    let mut words: Option<ParquetColumn> = None;
    while values.len() < wanted {
        let mut reader = ThriftReader { bytes: left, depth: 0 };
        let header = reader.read_struct()?;
        let size = usize::try_from(header.integer_field(3)?).map_err(|_| UNSUPPORTED)?;
        let whole = usize::try_from(header.integer_field(2)?).map_err(|_| UNSUPPORTED)?;
        let body = reader.bytes.get(..size).ok_or(TRUNCATED)?;
        left = &reader.bytes[size..];
        let page = decompress_page(body, codec, whole)?;
        match header.integer_field(1)? {
            2 => {
                let count = header.struct_field(7)?.integer_field(1)?;
                let count = usize::try_from(count).map_err(|_| UNSUPPORTED)?;
                words = Some(decode_plain_values(&page, kind, count)?);
            }
            0 => {
                read_data_page(&page, header.struct_field(5)?, kind, optional, &words, &mut values)?
            }
            _ => return Err(UNSUPPORTED),
        }
    }
    Ok(values)
}

/// Reads the values of a Parquet data page, after the definition levels that mark missing values.
fn read_data_page(
    page: &[u8],
    header: &ThriftStruct,
    kind: i64,
    optional: bool,
    words: &Option<ParquetColumn>,
    values: &mut ParquetColumn,
) -> Result<(), ParquetProblem> {
    let count = usize::try_from(header.integer_field(1)?).map_err(|_| UNSUPPORTED)?;
    if count > MAX_ROWS.saturating_sub(values.len()) {
        return Err(UNSUPPORTED);
    }
    let mut page = page;
    let mut present = vec![1; count];
    if optional {
        let length = page.get(..4).ok_or(TRUNCATED)?.try_into().map_err(|_| TRUNCATED)?;
        let length = u32::from_le_bytes(length) as usize;
        present = decode_rle_runs(page.get(4..4 + length).ok_or(TRUNCATED)?, 1, count)?;
        page = &page[4 + length..];
    }
    let there = present.iter().filter(|level| **level == 1).count();
    let indices = match header.integer_field(2)? {
        0 => None,
        2 | 8 => {
            let (width, rest) = page.split_first().ok_or(TRUNCATED)?;
            Some(decode_rle_runs(rest, (*width).into(), there)?)
        }
        _ => return Err(UNSUPPORTED),
    };
    let own = match indices {
        Some(_) => None,
        None => Some(decode_plain_values(page, kind, there)?),
    };
    let source = own.as_ref().or(words.as_ref()).ok_or(UNSUPPORTED)?;
    let mut next = 0;
    for level in present {
        if level != 1 {
            values.push(None);
            continue;
        }
        let at = indices.as_ref().map_or(next, |indices| indices[next] as usize);
        next += 1;
        values.push(source.get(at).ok_or(TRUNCATED)?.clone());
    }
    Ok(())
}

fn decompress_page(body: &[u8], codec: i64, size: usize) -> Result<Vec<u8>, ParquetProblem> {
    const MAX_PAGE_BYTES: usize = 1 << 28;
    if size > MAX_PAGE_BYTES {
        return Err(UNSUPPORTED);
    }
    match codec {
        0 => Ok(body.to_vec()),
        1 => {
            let problem = "has a page that SNAPPY cannot decompress";
            // The decoder trusts the length in the body, so check it first.
            let said = snap::raw::decompress_len(body).map_err(|_| problem)?;
            if said != size {
                return Err(UNSUPPORTED);
            }
            let unpacked = snap::raw::Decoder::new().decompress_vec(body);
            unpacked.map_err(|_| problem)
        }
        6 => {
            let problem = "has a page that ZSTD cannot decompress";
            let decoder = ruzstd::decoding::StreamingDecoder::new(body).map_err(|_| problem)?;
            let mut page = Vec::with_capacity(size);
            let mut bounded = decoder.take(size as u64);
            bounded.read_to_end(&mut page).map_err(|_| problem)?;
            Ok(page)
        }
        _ => Err(UNSUPPORTED),
    }
}

fn decode_plain_values(
    page: &[u8],
    kind: i64,
    count: usize,
) -> Result<ParquetColumn, ParquetProblem> {
    let eights = || -> Result<Vec<[u8; 8]>, ParquetProblem> {
        let bytes = page.get(..count.checked_mul(8).ok_or(TRUNCATED)?).ok_or(TRUNCATED)?;
        let (eights, _) = bytes.as_chunks::<8>();
        Ok(eights.to_vec())
    };
    let whole = |bytes| Some(ParquetCell::Whole(i64::from_le_bytes(bytes)));
    let float = |bytes| Some(ParquetCell::Float(f64::from_le_bytes(bytes)));
    match kind {
        2 => Ok(eights()?.into_iter().map(whole).collect()),
        5 => Ok(eights()?.into_iter().map(float).collect()),
        _ => {
            let mut rest = page;
            let mut values = Vec::new();
            for _ in 0..count {
                let length = rest.get(..4).ok_or(TRUNCATED)?.try_into().map_err(|_| TRUNCATED)?;
                let length = u32::from_le_bytes(length) as usize;
                let text = rest.get(4..4 + length).ok_or(TRUNCATED)?;
                let text = std::str::from_utf8(text).map_err(|_| UNSUPPORTED)?;
                values.push(Some(ParquetCell::Text(Arc::from(text))));
                rest = &rest[4 + length..];
            }
            Ok(values)
        }
    }
}

/// Decodes `count` integers of `width` bits from Parquet's hybrid of run-length encoding and bit
/// packing.
fn decode_rle_runs(bytes: &[u8], width: u32, count: usize) -> Result<Vec<u32>, ParquetProblem> {
    if width > 32 {
        return Err(UNSUPPORTED);
    }
    let mut reader = ThriftReader { bytes, depth: 0 };
    let mut values = Vec::with_capacity(count.min(1 << 20));
    while values.len() < count {
        let head = reader.read_varint()?;
        let left = count - values.len();
        if head & 1 == 0 {
            let size = width.div_ceil(8) as usize;
            let taken = reader.take_bytes(size)?;
            let mut word = [0; 4];
            word[..size].copy_from_slice(taken);
            let times = usize::try_from(head >> 1).map_err(|_| UNSUPPORTED)?.min(left);
            values.extend(std::iter::repeat_n(u32::from_le_bytes(word), times));
            if times == 0 {
                return Err(UNSUPPORTED);
            }
        } else {
            let groups = usize::try_from(head >> 1).map_err(|_| UNSUPPORTED)?;
            let size = groups.checked_mul(width as usize).ok_or(TRUNCATED)?;
            let taken = reader.take_bytes(size.min(reader.bytes.len()))?;
            let bit =
                |at: usize| u32::from(taken.get(at / 8).is_some_and(|b| b >> (at % 8) & 1 == 1));
            for n in 0..groups.saturating_mul(8).min(left) {
                let start = n * width as usize;
                values.push((0..width).map(|i| bit(start + i as usize) << i).sum());
            }
        }
    }
    Ok(values)
}

/// Reads Thrift's compact protocol, which encodes Parquet's metadata.
struct ThriftReader<'a> {
    bytes: &'a [u8],
    depth: u32,
}

enum ThriftField {
    Whole(i64),
    Bytes(Vec<u8>),
    List(Vec<ThriftField>),
    Structure(ThriftStruct),
    Other,
}

#[derive(Default)]
struct ThriftStruct(BTreeMap<i64, ThriftField>);

impl ThriftField {
    fn as_struct(&self) -> Result<&ThriftStruct, ParquetProblem> {
        match self {
            Self::Structure(fields) => Ok(fields),
            _ => Err(UNSUPPORTED),
        }
    }
}

impl ThriftStruct {
    fn integer_field(&self, id: i64) -> Result<i64, ParquetProblem> {
        match self.0.get(&id) {
            Some(ThriftField::Whole(value)) => Ok(*value),
            _ => Err(UNSUPPORTED),
        }
    }

    fn text_field(&self, id: i64) -> Result<String, ParquetProblem> {
        match self.0.get(&id) {
            Some(ThriftField::Bytes(bytes)) => Ok(String::from_utf8_lossy(bytes).into_owned()),
            _ => Err(UNSUPPORTED),
        }
    }

    fn list_field(&self, id: i64) -> Result<&[ThriftField], ParquetProblem> {
        match self.0.get(&id) {
            Some(ThriftField::List(list)) => Ok(list),
            _ => Err(UNSUPPORTED),
        }
    }

    fn struct_field(&self, id: i64) -> Result<&Self, ParquetProblem> {
        self.0.get(&id).ok_or(UNSUPPORTED)?.as_struct()
    }
}

impl<'a> ThriftReader<'a> {
    fn take_bytes(&mut self, n: usize) -> Result<&'a [u8], ParquetProblem> {
        let (taken, rest) = self.bytes.split_at_checked(n).ok_or(TRUNCATED)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn read_byte(&mut self) -> Result<u8, ParquetProblem> {
        Ok(self.take_bytes(1)?[0])
    }

    fn read_varint(&mut self) -> Result<u64, ParquetProblem> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.read_byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(UNSUPPORTED)
    }

    fn read_zigzag(&mut self) -> Result<i64, ParquetProblem> {
        let value = self.read_varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn enter_nesting(&mut self) -> Result<(), ParquetProblem> {
        const MAX_THRIFT_DEPTH: u32 = 16;
        self.depth += 1;
        match self.depth > MAX_THRIFT_DEPTH {
            true => Err(UNSUPPORTED),
            false => Ok(()),
        }
    }

    fn read_struct(&mut self) -> Result<ThriftStruct, ParquetProblem> {
        self.enter_nesting()?;
        let mut fields = BTreeMap::new();
        let mut id = 0;
        loop {
            let head = self.read_byte()?;
            if head == 0 {
                break;
            }
            id = match head >> 4 {
                0 => self.read_zigzag()?,
                more => id.wrapping_add(i64::from(more)),
            };
            let field = self.read_field(head & 0x0f)?;
            fields.insert(id, field);
        }
        self.depth -= 1;
        Ok(ThriftStruct(fields))
    }

    /// Reads an item of a Thrift list. A boolean item takes one byte; for a boolean field of a
    /// structure, `kind` is the value.
    fn read_list_item(&mut self, kind: u8) -> Result<ThriftField, ParquetProblem> {
        if matches!(kind, 1 | 2) {
            self.read_byte()?;
        }
        self.read_field(kind)
    }

    fn read_field(&mut self, kind: u8) -> Result<ThriftField, ParquetProblem> {
        Ok(match kind {
            1 | 2 => ThriftField::Other,
            3 => ThriftField::Whole((self.read_byte()? as i8).into()),
            4..=6 => ThriftField::Whole(self.read_zigzag()?),
            7 => {
                self.take_bytes(8)?;
                ThriftField::Other
            }
            8 => {
                let length = usize::try_from(self.read_varint()?).map_err(|_| UNSUPPORTED)?;
                ThriftField::Bytes(self.take_bytes(length)?.to_vec())
            }
            9 | 10 => {
                let head = self.read_byte()?;
                let count = match head >> 4 {
                    15 => usize::try_from(self.read_varint()?).map_err(|_| UNSUPPORTED)?,
                    few => few.into(),
                };
                if count > self.bytes.len() {
                    return Err(TRUNCATED);
                }
                self.enter_nesting()?;
                let items = (0..count).map(|_| self.read_list_item(head & 0x0f));
                let items = items.collect::<Result<_, _>>()?;
                self.depth -= 1;
                ThriftField::List(items)
            }
            12 => ThriftField::Structure(self.read_struct()?),
            _ => return Err(UNSUPPORTED),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_claims_another_length_is_refused_before_it_takes_memory() {
        let body = snap::raw::Encoder::new().compress_vec(b"latency").unwrap();
        assert_eq!(decompress_page(&body, 1, 7).unwrap(), b"latency");
        assert_eq!(decompress_page(&body, 1, 8), Err(UNSUPPORTED));
        // The body declares 2^32 - 1 bytes.
        let claim = [&[0xff, 0xff, 0xff, 0xff, 0x0f], &body[1..]].concat();
        assert_eq!(decompress_page(&claim, 1, 7), Err(UNSUPPORTED));
    }
}
