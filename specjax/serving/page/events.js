/** Events of a stream, as JSON. */

/**
 * @param {ReadableStream<Uint8Array>} body
 * @yields {object} what stands in each event
 * @returns {boolean} whether the stream came to its end, and was not broken off
 */
export async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return false;
    const blocks = (waiting + value).split("\n\n");
    waiting = blocks.pop();
    for (const block of blocks) {
      if (!block.startsWith("data: ")) continue;
      const data = block.slice("data: ".length);
      if (data === "[DONE]") return true;
      yield JSON.parse(data);
    }
  }
}
