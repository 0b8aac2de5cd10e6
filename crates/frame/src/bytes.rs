//! Big-endian numbers at offsets known only at run time: every access is checked and none panics.

/// The `N` bytes at `at`, if all are there.
#[inline]
pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<&[u8; N]> {
    bytes.get(at..)?.first_chunk()
}

/// The `N` bytes at `at` to write to, if all are there.
#[inline]
pub(crate) fn array_at_mut<const N: usize>(bytes: &mut [u8], at: usize) -> Option<&mut [u8; N]> {
    bytes.get_mut(at..)?.first_chunk_mut()
}

/// The 16-bit field at `at`.
#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array_at(bytes, at).map(|field| u16::from_be_bytes(*field))
}

/// The 32-bit field at `at`.
#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array_at(bytes, at).map(|field| u32::from_be_bytes(*field))
}

/// Writes `value`'s bytes at `at`; returns `None` and writes nothing if they do not fit.
#[inline]
pub(crate) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) -> Option<()> {
    *array_at_mut(bytes, at)? = value;
    Some(())
}

/// Copies options behind a fixed header of `fixed` bytes and returns the length of both.
pub(crate) fn put_options(out: &mut [u8], fixed: usize, options: &[u8]) -> Result<usize, crate::BuildError> {
    if options.len() > 40 || !options.len().is_multiple_of(4) {
        return Err(crate::BuildError::Options);
    }
    let end = fixed + options.len();
    let room = out.get_mut(fixed..end).ok_or(crate::BuildError::NoRoom)?;
    room.copy_from_slice(options);
    Ok(end)
}
