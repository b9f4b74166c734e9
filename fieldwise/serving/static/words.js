// Numbers and long texts as people read them.

export function percent(share) {
  const distance = Math.min(share, 1 - share) * 100;
  const digits = distance > 0 ? Math.max(1, Math.min(8, 2 - Math.floor(Math.log10(distance)))) : 1;
  return `${(share * 100).toFixed(digits)} %`;
}

/** A number with its sign; small ones keep two digits that say something. */
export function signed(number, digits = 3) {
  const size = Math.abs(number), small = size > 0 ? Math.ceil(-Math.log10(size)) + 1 : 0;
  return (number < 0 ? "−" : "+") + size.toFixed(Math.max(digits, Math.min(small, 7)));
}

export const signedPercent = (share) => `${signed(share * 100, 1)} %`;
export const shorter = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
