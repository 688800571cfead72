// Pure: from the server's answer about a plan to what its ranks keep and need, in words.

import { bytes } from '../panel/format.js'
import { stageCaption } from './mesh.js'

/** A line for all ranks, or one for each stage where they differ. groups: as `meshGroups` has them. say: `t`. */
export function memoryWords({ memory, device }, groups, say) {
  if (!memory || !groups.length) return []
  const { kept, working } = memory
  const line = (who, rest) => {
    if (working !== null) return say('plan.with_forward', { who, kept: bytes(rest), peak: bytes(rest + working) })
    return say(device === 'cpu' ? 'plan.at_rest' : 'plan.forward_unknown', { who, kept: bytes(rest) })
  }
  if (kept.every((rest) => bytes(rest) === bytes(kept[0]))) return [line(say('plan.each_rank'), kept[0])]
  return groups[0].stages.map((stage, place) => line(stageCaption(stage, say), kept[place]))
}
